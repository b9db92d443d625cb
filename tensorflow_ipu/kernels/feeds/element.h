#ifndef TENSORFLOW_IPU_KERNELS_FEEDS_ELEMENT_H_
#define TENSORFLOW_IPU_KERNELS_FEEDS_ELEMENT_H_

#include <cstddef>
#include <cstring>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace tensorflow_ipu {

// An element of a dataset: its tensors, or a copy of their bytes if it is small. To release tensors on another
// processor than the pump's takes longer than such a copy. Its memory goes back to the pump.
class InfeedElement {
 public:
  void Hold(std::vector<tensorflow::Tensor>* tensors) {
    copy_.clear();
    tensors_.swap(*tensors);
    tensors->clear();
  }

  void Copy(const std::vector<tensorflow::Tensor>& tensors) {
    copy_.clear();
    tensors_.clear();
    for (const tensorflow::Tensor& tensor : tensors) {
      const auto* const data = static_cast<const std::byte*>(tensor.data());
      copy_.insert(copy_.end(), data, data + tensor.TotalBytes());
    }
  }

  // Calls `visit(data, bytes)` for each piece of memory of the element.
  template <typename Visit>
  void ForEachPiece(Visit visit) const {
    for (const tensorflow::Tensor& tensor : tensors_) visit(tensor.data(), tensor.TotalBytes());
    if (!copy_.empty()) visit(copy_.data(), copy_.size());
  }

  // Copies each tensor `i`, of `sizes[i]` bytes, to `to(i)`.
  template <typename Destination>
  void CopyTo(const std::vector<std::size_t>& sizes, Destination to) const {
    const std::byte* from = copy_.data();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::memcpy(to(i), copy_.empty() ? tensors_[i].data() : from, sizes[i]);
      from += copy_.empty() ? 0 : sizes[i];
    }
  }

  void Prefetch() const {
    for (std::size_t at = 0; at < copy_.size(); at += 64) __builtin_prefetch(copy_.data() + at);
  }

  void Drop() { tensors_.clear(); }

 private:
  std::vector<tensorflow::Tensor> tensors_;
  std::vector<std::byte> copy_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FEEDS_ELEMENT_H_
