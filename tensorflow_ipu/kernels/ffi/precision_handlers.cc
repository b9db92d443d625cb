// Handlers that emulate the machine's arithmetic.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/host/threads.h"
#include "tensorflow_ipu/kernels/numerics/partials.h"
#include "tensorflow_ipu/kernels/numerics/stochastic_rounding.h"
#include "tensorflow_ipu/kernels/replicas/device_state.h"
#include "tensorflow_ipu/kernels/support/program_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

using Word = ffi::ResultBuffer<ffi::U32>;

void Write(uint64_t key, Word first, Word second) {
  first->typed_data()[0] = static_cast<uint32_t>(key >> 32);
  second->typed_data()[0] = static_cast<uint32_t>(key);
}

// The attributes are only read by the compiler. TensorFlow 2.20 rejects a call with attributes if its handler binds
// none.
ffi::Error Begin(StateBuffer state, ffi::Result<StateBuffer> next_state, Word first, Word second, Word shared_first,
                 Word shared_second, ffi::Dictionary) {
  const core::ProgramState at = core::StateAt(state.untyped_data());
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  uint64_t shared = 0;
  Write(streams->DrawRounding(at.replica, &shared), first, second);
  Write(shared, shared_first, shared_second);
  core::Advance(state.untyped_data(), next_state->untyped_data());
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_half_precision", Begin);

using KeyWord = ffi::Buffer<ffi::U32>;

core::Numbers NumbersOf(const ffi::AnyBuffer& buffer) {
  return {buffer.untyped_data(), buffer.element_type() == ffi::F16, buffer.dimensions().size() == 0};
}

// The arguments are one or two operands, and the key.
ffi::Error Round(ffi::ThreadPool threads, ffi::RemainingArgs arguments, ffi::Result<ffi::AnyBuffer> rounded,
                 int64_t site, int64_t to, int64_t operation) {
  const std::size_t operands = arguments.size() - 2;
  const auto key = [&](std::size_t i) { return arguments.get<KeyWord>(operands + i)->typed_data()[0]; };
  const auto operand = [&](std::size_t i) { return NumbersOf(*arguments.get<ffi::AnyBuffer>(i)); };
  const core::StochasticRounding rounding = {{key(0), key(1)},
                                             static_cast<uint64_t>(site),
                                             static_cast<core::RoundTo>(to),
                                             static_cast<core::Operation>(operation),
                                             operand(0),
                                             operands > 1 ? operand(1) : core::Numbers(),
                                             NumbersOf(*rounded)};
  constexpr double kCycles = 0.7;  // Measured with AVX-512.
  HostThreads::Of(threads.num_threads())
      .DivideRange(static_cast<int64_t>(rounded->element_count()), kCycles,
                   [&](int64_t begin, int64_t end) { rounding.Compute(begin, end); });
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_half_round", Round,
            ffi::Ffi::Bind()
                .Ctx<ffi::ThreadPool>()
                .RemainingArgs()
                .Ret<ffi::AnyBuffer>()
                .Attr<int64_t>("site")
                .Attr<int64_t>("to")
                .Attr<int64_t>("operation"));

// The arguments are the condition under which nothing is restored, the previous values and the new values. XLA stores
// the results in the memory of the previous values.
ffi::Error Restore(ffi::ThreadPool threads, ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  if (arguments.get<ffi::Buffer<ffi::PRED>>(0)->typed_data()[0]) return ffi::Error::Success();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const void* const from = arguments.get<ffi::AnyBuffer>(1 + results.size() + i)->untyped_data();
    const ffi::AnyBuffer to = **results.get<ffi::AnyBuffer>(i);
    HostThreads::Of(threads.num_threads()).Copy(to.untyped_data(), from, to.size_bytes());
  }
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_half_restore", Restore, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets());

// XLA stores the result in the memory of the operand.
ffi::Error Share(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

IPU_HANDLER("ipu_half_shared", Share);

// The key of stochastic rounding, if any, follows the operands.
ffi::Error Multiply(ffi::ThreadPool threads, ffi::AnyBuffer left, ffi::AnyBuffer right, ffi::RemainingArgs key,
                    ffi::ResultBuffer<ffi::F32> result, ffi::Span<const int64_t> geometry, bool half,
                    int64_t overflow) {
  uint32_t key_words[2] = {};
  for (std::size_t i = 0; i < key.size(); ++i) key_words[i] = key.get<KeyWord>(i)->typed_data()[0];
  core::BlockedProducts product = core::BlockedProducts::FromNumbers(geometry.begin());
  product.partials = half ? core::Partials::kHalf : core::Partials::kFloat;
  product.overflow = static_cast<core::Overflow>(overflow);
  product.operands = left.element_type() == ffi::F16 ? core::Element::kHalf : core::Element::kFloat;
  product.result = core::Element::kFloat;
  product.key = key.size() > 0 ? key_words : nullptr;
  const auto cycles = static_cast<double>(product.CyclesOfPart());
  HostThreads::Of(threads.num_threads()).DivideRange(product.Parts(), cycles, [&](int64_t first, int64_t last) {
    product.Compute(left.untyped_data(), right.untyped_data(), result->untyped_data(), first, last);
  });
  return ffi::Error::Success();
}

IPU_HANDLER("ipu_partial_products", Multiply,
            ffi::Ffi::Bind()
                .Ctx<ffi::ThreadPool>()
                .Arg<ffi::AnyBuffer>()
                .Arg<ffi::AnyBuffer>()
                .RemainingArgs()
                .Ret<ffi::Buffer<ffi::F32>>()
                .Attr<ffi::Span<const int64_t>>("geometry")
                .Attr<bool>("half")
                .Attr<int64_t>("overflow"));

}  // namespace
}  // namespace tensorflow_ipu
