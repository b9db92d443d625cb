#include "tensorflow_ipu/kernels/numerics/reduction.h"

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <optional>
#include <type_traits>

#include "tensorflow_ipu/kernels/numerics/half.h"
#include "tensorflow_ipu/kernels/numerics/processor.h"

namespace tensorflow_ipu::core {

namespace {

// The number of elements of a block, whose accumulators fit into the first-level cache. The inner loops have a fixed
// length, because GCC vectorizes no other loops at -O2. Short inputs, such as scalars, use the small block.
constexpr int64_t kBlock = 1024;
constexpr int64_t kSmallBlock = 16;

// The types below define the stored type of elements and their accumulation type. They have no branches, so that loops
// vectorize.

template <typename T>
struct Plain {
  using Stored = T;
  using Held = T;
  static Held Load(Stored stored) { return stored; }
  static Stored Store(Held held) { return held; }
};

// Used for means of integers, whose sum may not fit into their type.
template <typename T>
struct Wide {
  using Stored = T;
  using Held = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  static Held Load(Stored stored) { return stored; }
  static Stored Store(Held held) { return static_cast<Stored>(held); }
};

struct BF16 {
  using Stored = uint16_t;
  using Held = float;
  static Held Load(Stored stored) { return FromBits(static_cast<int32_t>(static_cast<uint32_t>(stored) << 16)); }
  static Stored Store(Held held) {
    const uint32_t bits = static_cast<uint32_t>(Bits(held));
    const uint32_t to_nearest_even = 0x7fff + ((bits >> 16) & 1);
    const uint32_t quiet_nan = (bits >> 16) | 0x40;
    return static_cast<Stored>(held != held ? quiet_nan : (bits + to_nearest_even) >> 16);
  }
};

// Adds or multiplies. Overflow is defined only for unsigned integers.
template <typename T>
T Wrapped(T a, T b, bool product) {
  if constexpr (std::is_integral_v<T>) {
    const uint64_t wide_a = static_cast<uint64_t>(a);
    const uint64_t wide_b = static_cast<uint64_t>(b);
    return static_cast<T>(product ? wide_a * wide_b : wide_a + wide_b);
  } else {
    return product ? a * b : a + b;
  }
}

constexpr auto kSum = [](auto a, auto b) { return Wrapped(a, b, /*product=*/false); };
constexpr auto kProduct = [](auto a, auto b) { return Wrapped(a, b, /*product=*/true); };
// If `b` is NaN, the comparison is false and `b` is returned. If `a` is NaN, it does not equal itself.
constexpr auto kMin = [](auto a, auto b) { return a < b || a != a ? a : b; };
constexpr auto kMax = [](auto a, auto b) { return a > b || a != a ? a : b; };
constexpr auto kAnd = [](auto a, auto b) { return static_cast<decltype(a)>(a & b); };
constexpr auto kOr = [](auto a, auto b) { return static_cast<decltype(a)>(a | b); };

// Returns the block, or a copy if the input is short or unaligned. Extra elements of a copy are computed and dropped.
template <typename Stored, int64_t size>
const Stored* Block(const std::byte* input, std::size_t bytes, Stored (&copy)[size]) {
  if (bytes == sizeof(copy) && reinterpret_cast<std::uintptr_t>(input) % alignof(Stored) == 0) {
    return reinterpret_cast<const Stored*>(input);
  }
  std::memset(copy, 0, sizeof(copy));
  std::memcpy(copy, input, bytes);
  return copy;
}

// Reduces a block. A divisor of 0 means no division.
template <typename From, typename To, int64_t size, typename Operation>
void ReduceBlock(Operation operation, const std::vector<const std::byte*>& inputs, int64_t first, int64_t count,
                 int64_t divisor, std::byte* out) {
  using Stored = typename From::Stored;
  using Held = typename From::Held;
  Stored copy[size];
  Held sums[size];
  const std::size_t offset = static_cast<std::size_t>(first) * sizeof(Stored);
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Stored);
  const Stored* block = Block(inputs[0] + offset, bytes, copy);
  for (int64_t i = 0; i < size; ++i) sums[i] = From::Load(block[i]);
  for (std::size_t input = 1; input < inputs.size(); ++input) {
    block = Block(inputs[input] + offset, bytes, copy);
    for (int64_t i = 0; i < size; ++i) sums[i] = operation(sums[i], From::Load(block[i]));
  }
  if (divisor != 0) {
    const Held typed_divisor = static_cast<Held>(divisor);
    for (int64_t i = 0; i < size; ++i) sums[i] = sums[i] / typed_divisor;
  }
  if constexpr (std::is_same_v<From, To>) {
    for (int64_t i = 0; i < size; ++i) copy[i] = To::Store(sums[i]);
    std::memcpy(out + offset, copy, bytes);
  } else {
    typename To::Stored result[size];
    for (int64_t i = 0; i < size; ++i) result[i] = To::Store(sums[i]);
    std::memcpy(out + static_cast<std::size_t>(first) * sizeof(result[0]), result,
                static_cast<std::size_t>(count) * sizeof(result[0]));
  }
}

template <typename From, typename To, typename Operation>
void ReduceAll(Operation operation, const std::vector<const std::byte*>& inputs, int64_t count, int64_t divisor,
               std::byte* out) {
  if (count <= kSmallBlock) return ReduceBlock<From, To, kSmallBlock>(operation, inputs, 0, count, divisor, out);
  for (int64_t first = 0; first < count; first += kBlock) {
    ReduceBlock<From, To, kBlock>(operation, inputs, first, std::min(kBlock, count - first), divisor, out);
  }
}

// The inputs of a reduction: all inputs of a group, the inputs of one worker, or the partial results of all workers.
enum class Stage { kWhole, kPart, kParts };

struct Step {
  Stage stage;
  int64_t divisor;  // The divisor of a mean, which the last step applies.
};

template <typename Type, typename Operation>
void ReduceStage(Operation operation, const Step& step, const std::vector<const std::byte*>& inputs, int64_t count,
                 std::byte* out) {
  using Accumulated = Plain<typename Type::Held>;
  switch (step.stage) {
    case Stage::kWhole:
      return ReduceAll<Type, Type>(operation, inputs, count, step.divisor, out);
    case Stage::kPart:
      return ReduceAll<Type, Accumulated>(operation, inputs, count, 0, out);
    case Stage::kParts:
      return ReduceAll<Accumulated, Type>(operation, inputs, count, step.divisor, out);
  }
}

// Reduces values of any type. Means accumulate in WideType.
template <typename Type, typename WideType = Type>
void ReduceNumbers(Reduction reduction, const Step& step, const std::vector<const std::byte*>& inputs, int64_t count,
                   std::byte* out) {
  switch (reduction) {
    case Reduction::kSum:
      return ReduceStage<Type>(kSum, step, inputs, count, out);
    case Reduction::kMean:
      return ReduceStage<WideType>(kSum, step, inputs, count, out);
    case Reduction::kProduct:
      return ReduceStage<Type>(kProduct, step, inputs, count, out);
    case Reduction::kMin:
      return ReduceStage<Type>(kMin, step, inputs, count, out);
    case Reduction::kMax:
      return ReduceStage<Type>(kMax, step, inputs, count, out);
    default:
      return;
  }
}

template <typename T>
void ReduceIntegers(Reduction reduction, const Step& step, const std::vector<const std::byte*>& inputs, int64_t count,
                    std::byte* out) {
  ReduceNumbers<Plain<T>, Wide<T>>(reduction, step, inputs, count, out);
}

void ReduceBooleans(Reduction reduction, const Step& step, const std::vector<const std::byte*>& inputs, int64_t count,
                    std::byte* out) {
  if (reduction == Reduction::kAnd) return ReduceStage<Plain<uint8_t>>(kAnd, step, inputs, count, out);
  ReduceStage<Plain<uint8_t>>(kOr, step, inputs, count, out);
}

// Selects the IEEE 754 treatment of subnormal values. TensorFlow's threads flush them to zero and others do not, so the
// result would depend on the thread.
class Ieee754Floats {
 public:
#if IPU_X86
  // `fesetenv` also loads the x87 state, which takes as long as the rest of a small reduction.
  Ieee754Floats() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~Ieee754Floats() { _mm_setcsr(before_); }
#else
  Ieee754Floats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~Ieee754Floats() { std::fesetenv(&before_); }
#endif

  Ieee754Floats(const Ieee754Floats&) = delete;
  Ieee754Floats& operator=(const Ieee754Floats&) = delete;

 private:
#if IPU_X86
  static constexpr unsigned kDefault = 0x1f80;  // Round to nearest, keep subnormals, trap nothing.
  const unsigned before_;
#else
  std::fenv_t before_;
#endif
};

struct Type {
  const char* name;
  std::size_t bytes;
  void (*reduce)(Reduction, const Step&, const std::vector<const std::byte*>& inputs, int64_t count, std::byte* out);
};

const Type& TypeOf(DataType type) {
  static constexpr Type kTypes[] = {
      {},
      {"bool", 1, ReduceBooleans},
      {"int8", 1, ReduceIntegers<int8_t>},
      {"int16", 2, ReduceIntegers<int16_t>},
      {"int32", 4, ReduceIntegers<int32_t>},
      {"int64", 8, ReduceIntegers<int64_t>},
      {"uint8", 1, ReduceIntegers<uint8_t>},
      {"uint16", 2, ReduceIntegers<uint16_t>},
      {"uint32", 4, ReduceIntegers<uint32_t>},
      {"uint64", 8, ReduceIntegers<uint64_t>},
      {"float16", 2, ReduceNumbers<F16>},
      {"float32", 4, ReduceNumbers<Plain<float>>},
      {"float64", 8, ReduceNumbers<Plain<double>>},
      {},
      {},
      {},
      {"bfloat16", 2, ReduceNumbers<BF16>},
  };
  return kTypes[static_cast<int>(type)];
}

void ReduceAt(DataType type, Reduction reduction, const Step& step, const std::vector<const std::byte*>& inputs,
              int64_t count, std::byte* out) {
  std::optional<Ieee754Floats> ieee754;
  if (type >= DataType::kF16) ieee754.emplace();
  TypeOf(type).reduce(reduction, step, inputs, count, out);
}

}  // namespace

std::size_t SizeOf(DataType type) { return TypeOf(type).bytes; }

const char* NameOf(DataType type) { return TypeOf(type).name; }

bool Supports(DataType type, Reduction reduction) {
  if (reduction == Reduction::kLocal) return true;
  const bool logical = reduction == Reduction::kAnd || reduction == Reduction::kOr;
  return logical == (type == DataType::kBool);
}

DataType Accumulated(DataType type, Reduction reduction) {
  if (type == DataType::kF16 || type == DataType::kBF16) return DataType::kF32;
  if (reduction != Reduction::kMean || type < DataType::kS8 || type > DataType::kU64) return type;
  return type <= DataType::kS64 ? DataType::kS64 : DataType::kU64;
}

void Reduce(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
            std::byte* out) {
  const int64_t divisor = reduction == Reduction::kMean ? static_cast<int64_t>(inputs.size()) : 0;
  ReduceAt(type, reduction, {Stage::kWhole, divisor}, inputs, count, out);
}

void ReducePart(DataType type, Reduction reduction, const std::vector<const std::byte*>& inputs, int64_t count,
                std::byte* out) {
  ReduceAt(type, reduction, {Stage::kPart, 0}, inputs, count, out);
}

void ReduceParts(DataType type, Reduction reduction, const std::vector<const std::byte*>& parts, int64_t count,
                 int64_t replicas, std::byte* out) {
  ReduceAt(type, reduction, {Stage::kParts, reduction == Reduction::kMean ? replicas : 0}, parts, count, out);
}

}  // namespace tensorflow_ipu::core
