// The layout of the value that names a feed to a program, and how an op inside a program reads and advances it.
#ifndef TENSORFLOW_IPU_KERNELS_OPS_FEED_STATE_H_
#define TENSORFLOW_IPU_KERNELS_OPS_FEED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tensorflow_ipu {

// The elements of the int64 vector behind `IpuFeedState`.
struct FeedState {
  int64_t feed;   // The feed's number in its registry; below 0, the state is the order of a program (see OrderedState).
  int64_t lane;   // Which replica the program is.
  int64_t lanes;  // How many replicas there are.
  int64_t count;  // How often this program has used the feed: what makes each use depend on the one before.
};

inline FeedState StateAt(const void* data) {
  FeedState state;
  std::memcpy(&state, data, sizeof(state));
  return state;
}

// Writes the state after the use of which `at` is the state before. The count goes out as the one number that it is: as
// a part of a wider store, it would first have to wait for its own way through memory.
inline void Advance(const FeedState& at, void* next) {
  constexpr std::size_t kCountAt = offsetof(FeedState, count);
  std::memcpy(next, &at, kCountAt);
  const int64_t count = at.count + 1;
  std::memcpy(static_cast<char*>(next) + kCountAt, &count, sizeof(count));
}

// What a use of a feed is called with before its values: the feed's state, or ahead of it the order of the program. The
// first of the two is what the use advances. Both are copies: the results of the call may lie where they were.
struct OrderedState {
  FeedState advanced;
  FeedState feed;
  int64_t states;  // How many there are, 1 or 2: where the values begin.
};

// `state(i)` is the memory of argument i.
template <typename StateOf>
OrderedState OrderedStateAt(StateOf state) {
  const FeedState first = StateAt(state(0));
  if (first.feed >= 0) return {first, first, 1};
  return {first, StateAt(state(1)), 2};
}

// What the names of the variables begin with that hold such a value.
constexpr char kFeedStatePrefix[] = "ipu_feed_";
constexpr int64_t kFeedStateSize = sizeof(FeedState) / sizeof(int64_t);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_OPS_FEED_STATE_H_
