// The values that the rewriting passes into and out of computations.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_SCOPE_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_SCOPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"

namespace tensorflow_ipu::precision {

struct Scope {
  Key key;                         // Of the replica.
  Key shared;                      // The same on all replicas.
  Value state = nullptr;           // Names the random streams and the replica to custom calls.
  Value failed = nullptr;          // pred: whether an operation before this one has stopped the program.
  std::vector<Value> iterations;   // s32, of each loop around, from the outermost in.
  std::vector<std::string> loops;  // The names of the loops.

  // The position of `failed` in the packed tuple.
  static constexpr int64_t kFailed = 5;

  // The scope of a part, with its own keys; see `KeyOf`.
  Scope Inside(const Emit& emit, uint64_t part) const;

  // Packs all values into a tuple, and unpacks them in another computation.
  Value Packed(const Emit& emit) const;
  static Scope Of(const Emit& emit, Value packed, const Scope& like);
};

// Extends the parameter of a computation to a tuple of it and `packed`. Returns the new element.
Value Enter(xla::HloComputation* computation, const xla::Shape& packed);

// Extends the result of a computation to a tuple of it and `packed`.
void Leave(const Emit& emit, Value packed);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_SCOPE_H_
