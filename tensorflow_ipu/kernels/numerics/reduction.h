// The arithmetic of collectives, element by element and in the order of the replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// The values equal XLA's enumeration, so a cast converts between them.
enum class DataType { kBool = 1, kS8, kS16, kS32, kS64, kU8, kU16, kU32, kU64, kF16, kF32, kF64, kBF16 = 16 };

std::size_t SizeOf(DataType type);

// Returns TensorFlow's name of the type.
const char* NameOf(DataType type);

// kLocal keeps the replica's own value.
enum class Reduction { kSum, kMean, kProduct, kMin, kMax, kAnd, kOr, kLocal };

// Booleans support kAnd, kOr and kLocal. Other types support all reductions except kAnd and kOr.
bool Supports(DataType type, Reduction reduction);

// Reduces two or more inputs from left to right. `out` may be an input. `reduction` must not be kLocal.
//
// float16 and bfloat16 are accumulated in float32 and rounded once. Integers wrap around, and their mean is rounded
// toward zero. The minimum and maximum of a NaN and a number are NaN, as in XLA.
void Reduce(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
            std::byte* out);

// The same reduction in two steps. First each worker reduces its inputs to a partial result of type `Accumulated`. Then
// each worker reduces the partial results of all workers, which have `replicas` replicas in total.
DataType Accumulated(DataType type, Reduction reduction);
void ReducePart(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
                std::byte* out);
void ReduceParts(DataType type, Reduction reduction, const std::vector<const std::byte*>& parts, int64_t count,
                 int64_t replicas, std::byte* out);

}  // namespace tensorflow_ipu::core
