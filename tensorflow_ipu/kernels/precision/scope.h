// What the rewriting of a computation is given by those around it, and how it gets in and out.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_SCOPE_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_SCOPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/precision/emit.h"
#include "tensorflow_ipu/kernels/precision/rounding.h"

namespace tensorflow_ipu::precision {

// Values of a computation, and the loops that it is in.
struct Scope {
  Key key;                         // Of the replica.
  Key shared;                      // The same on all replicas.
  Value state = nullptr;           // Names the random streams and the replica to custom calls.
  Value failed = nullptr;          // pred: whether an operation before this one has stopped the program.
  std::vector<Value> iterations;   // s32, of each loop around, from the outermost in.
  std::vector<std::string> loops;  // What the loops are called.

  // Where `failed` is in what is packed.
  static constexpr int64_t kFailed = 5;

  // The scope of a part of what this is the scope of, with keys of its own; see `KeyOf`.
  Scope Inside(const Emit& emit, uint64_t part) const;

  // All of it, as a tuple that goes into a computation and comes out of it.
  Value Packed(const Emit& emit) const;
  static Scope Of(const Emit& emit, Value packed, const Scope& like);
};

// Has a computation of one parameter take the tuple of that parameter and of `packed`. Returns the new element of it.
Value Enter(xla::HloComputation* computation, const xla::Shape& packed);

// Has a computation return the tuple of what it returned and of `packed`.
void Leave(const Emit& emit, Value packed);

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_SCOPE_H_
