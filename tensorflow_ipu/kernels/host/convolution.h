// Convolutions by filters of three columns, and their gradients, in float32 with AVX-512.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow_ipu/kernels/host/kernel.h"
#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {

// Computes a `Conv2D`, or one of its gradients, on the memory of the program. oneDNN first copies images and filters
// into other layouts, and takes 1.5 to 2.5 times as long for up to a few hundred channels. Thread-safe.
class DirectConvolution {
 public:
  // Returns null if this class does not support the node on this processor.
  static std::unique_ptr<const DirectConvolution> Of(const tensorflow::NodeDef& node);

  // Returns false, without results, for sizes at which TensorFlow's kernels are as fast.
  bool Compute(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
               const HostThreads& threads) const;

 private:
  enum class Role { kForward, kOfInput, kOfFilter };

  Role role_ = Role::kForward;
  int64_t stride_ = 1;
  std::vector<int64_t> paddings_;  // Before and after each dimension, unless the padding is `same_`.
  bool same_ = false;
};

}  // namespace tensorflow_ipu
