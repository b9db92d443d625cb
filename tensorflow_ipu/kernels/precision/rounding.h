// The floating-point configuration of a program, and the steps that emulate an operation of half precision.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensorflow_ipu/kernels/numerics/stochastic_rounding.h"
#include "tensorflow_ipu/kernels/precision/emit.h"
#include "xla/hlo/ir/hlo_instruction.h"

namespace tensorflow_ipu::precision {

// The custom call in the entry of a program that emulates the machine's arithmetic. Its operand is the state of the
// random streams. It returns the state and two keys of two values each (u32).
constexpr char kMarker[] = "ipu_half_precision";

enum class Rounding { kNearest, kStochastic, kIdenticalOnly };

// The floating-point configuration, parsed from the attribute of the marker.
struct Options {
  bool inv = false;
  bool div0 = false;
  bool oflo = false;
  bool nanoo = false;
  bool stable = false;  // True if replicas round equal values equally.
  Rounding rounding = Rounding::kNearest;
  std::string matmul_partials;  // `half`, `float`, or empty for the library's choice.
  std::string conv_partials;
  // Attributes of single operations that scopes set: attribute -> operation name -> value.
  std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>> attributes;

  bool stops() const { return inv || div0 || oflo; }

  // Parses options such as `oflo=1 esr=on ipu_stochastic_rounding:while/Exp=off`. Unknown options are ignored.
  static Options Of(std::string_view text);
};

// The custom call that rounds stochastically: `ffi/precision_handlers.cc`.
constexpr char kRound[] = "ipu_half_round";

// The custom call that returns its operand, in the same memory: `ffi/precision_handlers.cc`.
constexpr char kShared[] = "ipu_half_shared";

// Two scalars of type u32 that seed the random bits of a computation.
struct Key {
  Value first = nullptr;
  Value second = nullptr;
};

// Derives the key of part `part` of a computation from the key of the computation. Parts have different keys.
Key KeyOf(const Emit& emit, Key key, uint64_t part);

// Returns the key of the next iteration of a loop.
Key NextKey(const Emit& emit, Key key);

// Returns the elementwise operation that a call of `kRound` computes itself; `kNone` for other operations.
core::Operation RoundedInside(const xla::HloInstruction& operation);

// Computes `operation` of the operands, which may be scalars, in float32. Rounds the result stochastically to `shape`,
// of float32 or float16. The random bits depend only on the key, `site` and the index of the element, so recomputing
// the value rounds it equally.
//
// It is a custom call instead of operations of XLA, because those compile slowly. A dozen operations for each rounding
// took five times as long to compile as the program itself. A kernel of XLA for each rounded operation took twice as
// long.
Value RoundStochastically(const Emit& emit, core::Operation operation, const std::vector<Value>& operands,
                          const xla::Shape& shape, Key key, uint64_t site, core::RoundTo to);

// Replaces elements of `value` (float32) that overflow float16 as the machine does: by NaN, or by the largest value of
// the same sign. NaNs stay.
Value Bounded(const Emit& emit, Value value, bool nan_on_overflow);

// Prevents XLA from computing a value again for each of its users. Such a program would repeat the value's rounding and
// all its dependencies, and take far longer to compile.
Value Shared(const Emit& emit, Value value);

// Conversions to 8-bit floats (f8). `ops/f8_ops.py` builds each conversion from operations on float32 and marks two of
// them. One rounds magnitudes to integers. The other returns the elements that overflow, and 0 for all other elements.
bool RoundsToF8(const xla::HloInstruction& operation);
bool OverflowsF8(const xla::HloInstruction& operation);

bool IsHalf(const xla::Shape& shape);

// Returns true if an operation computes, so that its exact result may have to be rounded. Moves, comparisons and
// selections do not compute.
bool Computes(const xla::HloInstruction& operation);

// Tensors of float16 whose values exist in float32 too.
using WideValues = std::unordered_map<const xla::HloInstruction*, Value>;

// Returns the float16 operation with operands and result in float32. It accumulates in float32, without intermediate
// rounding. Operands in `wide_values` are used instead of conversions.
Value Widened(const Emit& emit, const xla::HloInstruction& operation, const WideValues& wide_values);

// Returns the operands of an operation that is `RoundedInside`: scalars are not broadcast.
std::vector<Value> InsideOperands(const xla::HloInstruction& operation, const WideValues& wide_values);

// The values that the rewriting passes into and out of computations.
struct Scope {
  Key key;                         // Differs between replicas.
  Key shared;                      // The same on all replicas.
  Value state = nullptr;           // Identifies the random streams and the replica for custom calls.
  Value failed = nullptr;          // pred: true if an earlier operation has stopped the program.
  std::vector<Value> iterations;   // s32, of each enclosing loop, from the outermost one on.
  std::vector<std::string> loops;  // The names of the loops.

  // The position of `failed` in the packed tuple.
  static constexpr int64_t kFailed = 5;

  // Returns the scope of a part, with separate keys; see `KeyOf`.
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
