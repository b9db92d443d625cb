#include "tensorflow_ipu/kernels/precision/rounding.h"

#include <limits>

namespace tensorflow_ipu::precision {

namespace {

using xla::ComparisonDirection;

// The significand bits that float16 drops from float32.
constexpr uint32_t kDropped = 13;
constexpr uint32_t kDroppedMask = (1u << kDropped) - 1;

constexpr float kLargest = 65504.0f;         // Of float16.
constexpr float kRoundsUp = 65520.0f;        // From here on the nearest is above it.
constexpr float kSmallestNormal = 0x1p-14f;  // Of float16.
constexpr float kQuantum = 0x1p-24f;         // Between numbers below that.

constexpr uint32_t kGolden = 0x9e3779b9;

// Constants of a 32-bit finalizer with low bias: Wellons, Prospecting for Hash Functions, 2018.
constexpr uint32_t kFirstFactor = 0x7feb352d;
constexpr uint32_t kSecondFactor = 0x846ca68b;

// The finalizer of SplitMix64; see `core/random_streams.cc`.
uint64_t Scattered(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Value Mixed(const Emit& emit, Value x) {
  x = emit.Times(emit.Xor(x, emit.Down(x, 16)), emit.Filled(kFirstFactor, x));
  x = emit.Times(emit.Xor(x, emit.Down(x, 15)), emit.Filled(kSecondFactor, x));
  return emit.Xor(x, emit.Down(x, 16));
}

// The index of each element in row-major order.
Value Places(const Emit& emit, Value like) {
  if (like->shape().dimensions().empty()) return emit.Scalar<uint32_t>(0);
  const xla::Shape row = xla::ShapeUtil::MakeShape(xla::U32, {xla::ShapeUtil::ElementsIn(like->shape())});
  const Value numbers = emit.Add(xla::HloInstruction::CreateIota(row, 0));
  if (like->shape().dimensions().size() == 1) return numbers;
  return emit.Add(xla::HloInstruction::CreateReshape(Emit::Typed(like, xla::U32), numbers));
}

Value RandomBits(const Emit& emit, Value like, Key key, uint64_t site) {
  const Key own = KeyOf(emit, key, site);
  Value x = emit.Times(Places(emit, like), emit.Filled(kGolden, like));
  x = emit.Plus(x, emit.Broadcast(own.first, like));
  x = emit.Times(emit.Xor(x, emit.Down(x, 16)), emit.Filled(kFirstFactor, x));
  x = emit.Plus(x, emit.Broadcast(own.second, like));
  x = emit.Times(emit.Xor(x, emit.Down(x, 15)), emit.Filled(kSecondFactor, x));
  return emit.Down(x, 32 - kDropped);
}

Value FractionOf(const Emit& emit, Value random) {
  return emit.Times(emit.Convert(emit.Bits(random, xla::S32), xla::F32), emit.Filled(1.0f / (1 << kDropped), random));
}

}  // namespace

Value RandomFraction(const Emit& emit, Value like, Key key, uint64_t site) {
  return FractionOf(emit, RandomBits(emit, like, key, site));
}

Key KeyOf(const Emit& emit, Key key, uint64_t part) {
  const uint64_t scattered = Scattered(part);
  const auto high = static_cast<uint32_t>(scattered >> 32);
  const auto low = static_cast<uint32_t>(scattered);
  return {Mixed(emit, emit.Plus(key.first, emit.Scalar(high))), Mixed(emit, emit.Xor(key.second, emit.Scalar(low)))};
}

Key NextKey(const Emit& emit, Key key) {
  return {emit.Plus(key.first, emit.Scalar(kGolden)), Mixed(emit, emit.Plus(key.second, emit.Scalar(kGolden)))};
}

Value RoundStochastically(const Emit& emit, Value value, Key key, uint64_t site) {
  const Value random = RandomBits(emit, value, key, site);
  // Adding random bits below the significand of float16 carries into it in proportion to the dropped bits; the rest is
  // cut off.
  const Value bits = emit.Plus(emit.Bits(value, xla::U32), random);
  const Value normal = emit.Bits(emit.And(bits, emit.Filled(~kDroppedMask, bits)), xla::F32);
  // Subnormal numbers are evenly spaced: there a random fraction is added and the sum is cut off.
  const Value absolute = emit.Abs(value);
  const Value fraction = FractionOf(emit, random);
  const Value quanta =
      emit.Unary(xla::HloOpcode::kFloor, emit.Plus(emit.Times(absolute, emit.Filled(1 / kQuantum, value)), fraction));
  const Value sign = emit.And(emit.Bits(value, xla::U32), emit.Filled(0x80000000u, value));
  const Value small =
      emit.Bits(emit.Or(emit.Bits(emit.Times(quanta, emit.Filled(kQuantum, value)), xla::U32), sign), xla::F32);
  const Value is_small = emit.Compare(absolute, emit.Filled(kSmallestNormal, value), ComparisonDirection::kLt);
  // Adding bits may have changed a NaN.
  const Value is_number = emit.Compare(value, value, ComparisonDirection::kEq);
  return emit.Select(is_number, emit.Select(is_small, small, normal), value);
}

Value Bounded(const Emit& emit, Value value, bool nan_on_overflow, bool rounded) {
  const Value absolute = emit.Abs(value);
  const Value above = rounded ? emit.Compare(absolute, emit.Filled(kLargest, value), ComparisonDirection::kGt)
                              : emit.Compare(absolute, emit.Filled(kRoundsUp, value), ComparisonDirection::kGe);
  if (nan_on_overflow) {
    return emit.Select(above, emit.Filled(std::numeric_limits<float>::quiet_NaN(), value), value);
  }
  const Value zero = emit.Filled(0.0f, value);
  const Value bound = emit.Select(emit.Compare(value, zero, ComparisonDirection::kLt), emit.Filled(-kLargest, value),
                                  emit.Filled(kLargest, value));
  return emit.Select(above, bound, value);
}

Value Unfused(const Emit& emit, Value product) {
  constexpr float kBeyond = std::numeric_limits<float>::infinity();
  const Value above = emit.Compare(product, emit.Filled(kRoundsUp, product), ComparisonDirection::kGe);
  const Value below = emit.Compare(product, emit.Filled(-kRoundsUp, product), ComparisonDirection::kLe);
  return emit.Select(above, emit.Filled(kBeyond, product), emit.Select(below, emit.Filled(-kBeyond, product), product));
}

}  // namespace tensorflow_ipu::precision
