// Dequeues elements of an outfeed, one by one or stacked, as tensors that Python imports by DLPack.
//
// An eager call of an operation takes longer than waking the waiting thread. After a long run, when caches are cold, it
// takes four times as long as a dequeue here.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "external/dlpack/include/dlpack/dlpack.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"
#include "tensorflow_ipu/kernels/queues/outfeed.h"

namespace tensorflow_ipu {

// The layout of an outfeed's elements, as filled in by `feeds/_layout.py`.
struct ElementLayout {
  int64_t number;
  int64_t leaves;
  const int64_t* types;  // Of each leaf: DLPack's type code in the lower 8 bits, the bits of a value above them.
  const int64_t* bytes;  // Of each leaf.
  const int64_t* ranks;  // Of each leaf.
  const int64_t* sizes;  // The dimensions of all leaves, concatenated.
};

namespace {

// Returned by calls that transfer nothing. A dequeue operation then reports the reason. All elements stay in the
// outfeed.
constexpr int64_t kRefused = -1;

// TensorFlow copies tensors with a smaller alignment.
constexpr std::size_t kAlignment = 64;

constexpr std::size_t RoundedUp(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Free {
  void operator()(DLManagedTensor* tensor) const { tensor->deleter(tensor); }
};
using OwnedTensor = std::unique_ptr<DLManagedTensor, Free>;

// Creates a tensor with these leading dimensions. Its sizes and data are in one allocation. Returns null if there is no
// memory.
OwnedTensor NewTensor(const ElementLayout& layout, int64_t leaf, const int64_t* sizes,
                      const std::vector<int64_t>& leading) {
  const int64_t rank = static_cast<int64_t>(leading.size()) + layout.ranks[leaf];
  int64_t bytes = layout.bytes[leaf];
  for (const int64_t size : leading) bytes *= size;
  const std::size_t head = RoundedUp(sizeof(DLManagedTensor) + static_cast<std::size_t>(rank) * sizeof(int64_t));
  void* const memory = std::aligned_alloc(kAlignment, head + RoundedUp(static_cast<std::size_t>(bytes)));
  if (memory == nullptr) return nullptr;
  OwnedTensor owned(new (memory) DLManagedTensor());
  owned->deleter = [](DLManagedTensor* self) { std::free(self); };
  auto* const shape = reinterpret_cast<int64_t*>(owned.get() + 1);
  std::copy(sizes, sizes + layout.ranks[leaf], std::copy(leading.begin(), leading.end(), shape));
  DLTensor& tensor = owned->dl_tensor;
  tensor.data = static_cast<std::byte*>(memory) + head;
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<int32_t>(rank);
  tensor.dtype = {static_cast<uint8_t>(layout.types[leaf] & 0xff), static_cast<uint8_t>(layout.types[leaf] >> 8), 1};
  tensor.shape = shape;
  return owned;
}

// Appends a tensor without values for each leaf of an element, with these leading dimensions. Returns false if there is
// no memory.
bool AddTensors(const ElementLayout& layout, const std::vector<int64_t>& leading, std::vector<OwnedTensor>* tensors) {
  const int64_t* sizes = layout.sizes;
  for (int64_t leaf = 0; leaf < layout.leaves; sizes += layout.ranks[leaf++]) {
    tensors->push_back(NewTensor(layout, leaf, sizes, leading));
    if (tensors->back() == nullptr) return false;
  }
  return true;
}

// Returns the dimensions that precede the leaf's own dimensions.
std::vector<int64_t> OfReplicas(int64_t replicas) {
  return replicas > 1 ? std::vector<int64_t>{replicas} : std::vector<int64_t>{};
}

std::vector<std::size_t> SizesOf(const ElementLayout& layout) { return {layout.bytes, layout.bytes + layout.leaves}; }

// Takes elements, copies them by `copy(taken, tensors)` and passes the tensors to the caller. If `copy` returns false,
// the elements are put back.
template <typename Copy>
int64_t Take(int64_t number, int64_t patience_us, const ElementLayout& layout, int64_t most, DLManagedTensor** tensors,
             Copy copy) {
  const std::shared_ptr<core::Outfeed> outfeed = Outfeeds().Find(number);
  if (outfeed == nullptr) return kRefused;
  core::Outfeed::Taken taken = outfeed->Take(std::chrono::microseconds(patience_us), layout.number, most);
  if (taken.layout != 0 && taken.layout != layout.number) return kRefused;
  std::vector<OwnedTensor> copied;
  if (!copy(taken, &copied)) {
    outfeed->PutBack(std::move(taken));
    return kRefused;
  }
  for (OwnedTensor& tensor : copied) *tensors++ = tensor.release();
  return taken.count;
}

}  // namespace

// Allocates the tensors of an element of `replicas` replicas, which the caller owns. Writes the address of each leaf's
// values to `values`. Returns 0 if there is no memory.
extern "C" int32_t ipu_outfeed_place(const ElementLayout* layout, int64_t replicas, DLManagedTensor** tensors,
                                     void** values) {
  std::vector<OwnedTensor> element;
  if (!AddTensors(*layout, OfReplicas(replicas), &element)) return 0;
  for (OwnedTensor& tensor : element) {
    *values++ = tensor->dl_tensor.data;
    *tensors++ = tensor.release();
  }
  return 1;
}

// Takes up to `most` elements of an outfeed, and waits up to `patience_us` if there is none. If `first` is not null,
// the first element is copied to these addresses, which belong to tensors for `replicas` replicas. For each other
// element, `tensors` receives one tensor per leaf, which the caller owns. Returns the number of elements, or
// `kRefused`.
extern "C" int64_t ipu_outfeed_rows(int64_t number, int64_t patience_us, const ElementLayout* layout, int64_t most,
                                    int64_t replicas, void* const* first, DLManagedTensor** tensors) {
  return Take(number, patience_us, *layout, most, tensors, [&](const auto& taken, std::vector<OwnedTensor>* copied) {
    if (taken.count > 0 && first != nullptr && taken.replicas != replicas) return false;
    const std::size_t in_place = first == nullptr ? 0 : 1;
    for (int64_t row = static_cast<int64_t>(in_place); row < taken.count; ++row) {
      if (!AddTensors(*layout, OfReplicas(taken.replicas), copied)) return false;
    }
    core::CopyRows(taken, SizesOf(*layout), [&](std::size_t row, std::size_t leaf) {
      if (row < in_place) return first[leaf];
      return (*copied)[(row - in_place) * static_cast<std::size_t>(layout->leaves) + leaf]->dl_tensor.data;
    });
    return true;
  });
}

// Like `ipu_outfeed_rows`, but stacks all elements of a leaf in one tensor. Its shape is [elements] + [replicas, if
// several] + the leaf's shape.
extern "C" int64_t ipu_outfeed_stacked(int64_t number, int64_t patience_us, const ElementLayout* layout, int64_t most,
                                       DLManagedTensor** tensors) {
  return Take(number, patience_us, *layout, most, tensors, [&](const auto& taken, std::vector<OwnedTensor>* copied) {
    std::vector<int64_t> leading = OfReplicas(taken.replicas);
    leading.insert(leading.begin(), taken.count);
    if (!AddTensors(*layout, leading, copied)) return false;
    core::StackLeaves(taken, SizesOf(*layout), [&](std::size_t leaf) { return (*copied)[leaf]->dl_tensor.data; });
    return true;
  });
}

}  // namespace tensorflow_ipu
