// One element of a dataset on its way from the pump to a program.
#ifndef TENSORFLOW_IPU_KERNELS_FEEDS_ELEMENT_H_
#define TENSORFLOW_IPU_KERNELS_FEEDS_ELEMENT_H_

#include <cstddef>
#include <cstring>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace tensorflow_ipu {

// Its tensors, by reference; of a small element, a copy of their bytes. The program is on another processor than the
// pump, and to follow references there, to count them down and to free what the pump allocated takes longer than the
// bytes of a small element do. The copy's memory stays with the object, which the queue hands back to the pump.
class InfeedElement {
 public:
  // Takes the tensors over, and leaves none.
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

  // Calls `visit(data, bytes)` for each piece of memory that the element is in.
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

  // Has the processor bring the copy into its cache, while it does something else.
  void Prefetch() const {
    for (std::size_t at = 0; at < copy_.size(); at += 64) __builtin_prefetch(copy_.data() + at);
  }

  // Lets the tensors go.
  void Drop() { tensors_.clear(); }

 private:
  std::vector<tensorflow::Tensor> tensors_;
  std::vector<std::byte> copy_;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FEEDS_ELEMENT_H_
