// The arithmetic of collectives: what replicas contribute, reduced element by element and in the order of the replicas.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_REDUCTION_H_
#define TENSORFLOW_IPU_KERNELS_CORE_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

enum class DataType { kBool, kF16, kBF16, kF32, kF64, kS8, kS16, kS32, kS64, kU8, kU16, kU32, kU64 };

// In bytes.
std::size_t SizeOf(DataType type);

// For messages, as TensorFlow calls it.
const char* NameOf(DataType type);

// kLocal keeps what the replica itself has.
enum class Reduction { kSum, kMean, kProduct, kMin, kMax, kAnd, kOr, kLocal };

// Booleans have kAnd and kOr alone (and kLocal); numbers all but these.
bool Supports(DataType type, Reduction reduction);

// out[i] = inputs[0][i] + inputs[1][i] + ... for i from 0 to `count`, from left to right, so that a result depends on
// nothing but its operands. `out` may be one of the inputs. For every reduction but kLocal, of two inputs or more.
//
// float16 and bfloat16 accumulate in float32 and are rounded once, at the end: the sum of 16 replicas is as exact as
// one of two, and the mean of large values does not overflow on its way. Integers wrap around; their mean is rounded
// toward zero. The least and the greatest of values of which one is NaN is NaN, as in XLA.
void Reduce(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
            std::byte* out);

// The same in two steps, where groups of replicas are far apart. Each reduces what it has to values of the type that
// they accumulate in; and these parts, of `replicas` replicas in all, are reduced from left to right and stored in
// their type.
DataType Accumulated(DataType type, Reduction reduction);
void ReducePart(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
                std::byte* out);
void ReduceParts(DataType type, Reduction reduction, const std::vector<const std::byte*>& parts, int64_t count,
                 int64_t replicas, std::byte* out);

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_REDUCTION_H_
