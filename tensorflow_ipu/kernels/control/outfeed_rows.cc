// Elements of an outfeed, one by one or stacked, as tensors that Python takes over by DLPack. The eager call of an
// operation takes longer than waking the waiting thread, and after a long run, with cold caches, four times as long as
// a dequeue here.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "external/dlpack/include/dlpack/dlpack.h"
#include "tensorflow_ipu/kernels/core/outfeed.h"
#include "tensorflow_ipu/kernels/feeds/feeds.h"

namespace tensorflow_ipu {

// The elements of an outfeed, as filled in by `_rows.py`.
struct ElementLayout {
  int64_t number;
  int64_t leaves;
  const int64_t* types;  // Of each leaf: DLPack's code, and from the ninth bit on the bits of a value.
  const int64_t* bytes;  // Of each leaf.
  const int64_t* ranks;  // Of each leaf.
  const int64_t* sizes;  // The dimensions of all leaves, concatenated.
};

namespace {

// Answers of calls that transfer nothing.
enum Refusal : int64_t { kGone = -1, kOtherLayout = -2, kNoMemory = -3, kOtherReplicas = -4 };

// TensorFlow copies tensors of another alignment.
constexpr std::size_t kAlignment = 64;

constexpr std::size_t RoundedUp(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Free {
  void operator()(DLManagedTensor* tensor) const { tensor->deleter(tensor); }
};
using OwnedTensor = std::unique_ptr<DLManagedTensor, Free>;

// A tensor with its sizes and data in one allocation, with these leading dimensions. Null if there is no memory.
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

// The address of each row of a replica, in order.
std::vector<const std::byte*> RowsOf(const std::vector<core::Rows>& pieces, std::size_t row_bytes) {
  std::vector<const std::byte*> rows;
  for (const core::Rows& piece : pieces) {
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      rows.push_back(piece.data.get() + static_cast<std::size_t>(row) * row_bytes);
    }
  }
  return rows;
}

// Tensors for the leaves of an element, without values and with these leading dimensions; fewer if there is no memory.
std::vector<OwnedTensor> NewTensors(const ElementLayout& layout, const std::vector<int64_t>& leading) {
  std::vector<OwnedTensor> tensors;
  const int64_t* sizes = layout.sizes;
  for (int64_t leaf = 0; leaf < layout.leaves; ++leaf) {
    OwnedTensor tensor = NewTensor(layout, leaf, sizes, leading);
    if (tensor == nullptr) break;
    sizes += layout.ranks[leaf];
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Tensors for the leaves of an element of several replicas.
std::vector<OwnedTensor> NewElement(const ElementLayout& layout, int64_t replicas) {
  return NewTensors(layout, replicas > 1 ? std::vector<int64_t>{replicas} : std::vector<int64_t>{});
}

std::size_t RowBytes(const ElementLayout& layout) {
  return static_cast<std::size_t>(std::accumulate(layout.bytes, layout.bytes + layout.leaves, int64_t{0}));
}

// Copies row `row` of each replica to `to(leaf)`.
template <typename Destination>
void CopyRow(const std::vector<std::vector<const std::byte*>>& replicas, std::size_t row, const ElementLayout& layout,
             Destination to) {
  std::size_t offset = 0;
  for (int64_t leaf = 0; leaf < layout.leaves; ++leaf) {
    const std::size_t bytes = static_cast<std::size_t>(layout.bytes[leaf]);
    auto* at = static_cast<std::byte*>(to(leaf));
    for (const auto& replica : replicas) {
      std::memcpy(at, replica[row] + offset, bytes);
      at += bytes;
    }
    offset += bytes;
  }
}

// Copies the first row to `first`, a pointer a leaf, if that is not null, and the others into a tensor a leaf and
// element. Returns whether there was memory.
bool Copy(const core::Outfeed::Taken& taken, const ElementLayout& layout, void* const* first,
          std::vector<OwnedTensor>* tensors) {
  std::vector<std::vector<const std::byte*>> replicas;
  for (const auto& pieces : taken.pieces) replicas.push_back(RowsOf(pieces, RowBytes(layout)));
  for (std::size_t row = 0; row < static_cast<std::size_t>(taken.count); ++row) {
    if (row == 0 && first != nullptr) {
      CopyRow(replicas, row, layout, [&](int64_t leaf) { return first[leaf]; });
      continue;
    }
    std::vector<OwnedTensor> element = NewElement(layout, taken.replicas);
    if (element.size() != static_cast<std::size_t>(layout.leaves)) return false;
    CopyRow(replicas, row, layout,
            [&](int64_t leaf) { return element[static_cast<std::size_t>(leaf)]->dl_tensor.data; });
    for (OwnedTensor& tensor : element) tensors->push_back(std::move(tensor));
  }
  return true;
}

}  // namespace

// Allocates the tensors of an element of `replicas` replicas, which the caller owns, and returns where each leaf's
// values belong. Returns 0 if there is no memory.
extern "C" int32_t ipu_outfeed_place(const ElementLayout* layout, int64_t replicas, DLManagedTensor** tensors,
                                     void** values) {
  std::vector<OwnedTensor> element = NewElement(*layout, replicas);
  if (element.size() != static_cast<std::size_t>(layout->leaves)) return 0;
  for (OwnedTensor& tensor : element) {
    *values++ = tensor->dl_tensor.data;
    *tensors++ = tensor.release();
  }
  return 1;
}

// Takes up to `most` elements of an outfeed, and waits up to `patience_us` if there is none. If `first` is not null,
// the first element goes there, to tensors for `replicas` replicas; for each other one, `tensors` gets a tensor a leaf,
// which the caller owns. Returns the number of elements, or a `Refusal`, which a dequeue operation explains; then all
// elements stay.
extern "C" int64_t ipu_outfeed_rows(int64_t number, int64_t patience_us, const ElementLayout* layout, int64_t most,
                                    int64_t replicas, void* const* first, DLManagedTensor** tensors) {
  const std::shared_ptr<core::Outfeed> outfeed = Outfeeds().Find(number);
  if (outfeed == nullptr) return kGone;
  core::Outfeed::Taken taken = outfeed->Take(std::chrono::microseconds(patience_us), layout->number, most);
  if (taken.layout != 0 && taken.layout != layout->number) return kOtherLayout;
  if (taken.count > 0 && first != nullptr && taken.replicas != replicas) {
    outfeed->PutBack(std::move(taken));
    return kOtherReplicas;
  }
  std::vector<OwnedTensor> copied;
  if (!Copy(taken, *layout, first, &copied)) {
    outfeed->PutBack(std::move(taken));
    return kNoMemory;
  }
  for (OwnedTensor& tensor : copied) *tensors++ = tensor.release();
  return taken.count;
}

// As `ipu_outfeed_rows`, with all elements of a leaf in one tensor of shape [elements] + [replicas, if several] + the
// leaf's own.
extern "C" int64_t ipu_outfeed_stacked(int64_t number, int64_t patience_us, const ElementLayout* layout, int64_t most,
                                       DLManagedTensor** tensors) {
  const std::shared_ptr<core::Outfeed> outfeed = Outfeeds().Find(number);
  if (outfeed == nullptr) return kGone;
  core::Outfeed::Taken taken = outfeed->Take(std::chrono::microseconds(patience_us), layout->number, most);
  if (taken.layout != 0 && taken.layout != layout->number) return kOtherLayout;
  std::vector<int64_t> leading{taken.count};
  if (taken.replicas > 1) leading.push_back(taken.replicas);
  std::vector<OwnedTensor> stacked = NewTensors(*layout, leading);
  if (stacked.size() != static_cast<std::size_t>(layout->leaves)) {
    outfeed->PutBack(std::move(taken));
    return kNoMemory;
  }
  std::size_t offset = 0;
  for (int64_t leaf = 0; leaf < layout->leaves; ++leaf) {
    OwnedTensor& tensor = stacked[static_cast<std::size_t>(leaf)];
    const std::size_t bytes = static_cast<std::size_t>(layout->bytes[leaf]);
    core::StackLeaf(taken, RowBytes(*layout), offset, bytes, static_cast<std::byte*>(tensor->dl_tensor.data));
    offset += bytes;
  }
  for (OwnedTensor& tensor : stacked) *tensors++ = tensor.release();
  return taken.count;
}

}  // namespace tensorflow_ipu
