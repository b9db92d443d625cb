// The arithmetic of collectives, element by element and in the order of the replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensorflow_ipu::core {

// The numbers are those of XLA's, so that a cast converts them.
enum class DataType { kBool = 1, kS8, kS16, kS32, kS64, kU8, kU16, kU32, kU64, kF16, kF32, kF64, kBF16 = 16 };

std::size_t SizeOf(DataType type);

// As TensorFlow names it.
const char* NameOf(DataType type);

// kLocal keeps the replica's own value.
enum class Reduction { kSum, kMean, kProduct, kMin, kMax, kAnd, kOr, kLocal };

// Booleans have kAnd, kOr and kLocal; numbers have all others.
bool Supports(DataType type, Reduction reduction);

// Reduces two inputs or more from left to right. `out` may be an input. Not for kLocal.
//
// float16 and bfloat16 accumulate in float32 and are rounded once. Integers wrap around, and their mean is rounded
// toward zero. Minimum and maximum of a NaN are NaN, as in XLA.
void Reduce(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
            std::byte* out);

// The same in two steps: each worker reduces its inputs to parts of the accumulated type, and then reduces the parts,
// of `replicas` replicas in all.
DataType Accumulated(DataType type, Reduction reduction);
void ReducePart(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
                std::byte* out);
void ReduceParts(DataType type, Reduction reduction, const std::vector<const std::byte*>& parts, int64_t count,
                 int64_t replicas, std::byte* out);

}  // namespace tensorflow_ipu::core
