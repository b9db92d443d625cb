// Handlers of products and convolutions with the machine's partial sums.
#include <cstdint>
#include <cstring>

#include "tensorflow_ipu/kernels/core/partials.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/host/threads.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

using KeyWord = ffi::Buffer<ffi::U32>;

ffi::Error Multiply(ffi::ThreadPool threads, ffi::AnyBuffer left, ffi::AnyBuffer right, const uint32_t* key,
                    ffi::ResultBuffer<ffi::F32> result, ffi::Span<const int64_t> geometry, bool half,
                    int64_t overflow) {
  core::BlockedProducts product = core::BlockedProducts::FromNumbers(geometry.begin());
  product.partials = half ? core::Partials::kHalf : core::Partials::kFloat;
  product.overflow = static_cast<core::Overflow>(overflow);
  product.operands = left.element_type() == ffi::F16 ? core::Element::kHalf : core::Element::kFloat;
  product.result = core::Element::kFloat;
  product.key = key;
  const HostThreads& host = HostThreads::Of(threads.num_threads());
  host.device()->parallelFor(product.Parts(), Eigen::TensorOpCost(0, 0, static_cast<double>(product.CyclesOfPart())),
                             [&](Eigen::Index first, Eigen::Index last) {
                               product.Compute(left.untyped_data(), right.untyped_data(), result->untyped_data(), first,
                                               last);
                             });
  return ffi::Error::Success();
}

ffi::Error MultiplyToNearest(ffi::ThreadPool threads, ffi::AnyBuffer left, ffi::AnyBuffer right,
                             ffi::ResultBuffer<ffi::F32> result, ffi::Span<const int64_t> geometry, bool half,
                             int64_t overflow) {
  return Multiply(threads, left, right, nullptr, result, geometry, half, overflow);
}

ffi::Error MultiplyAtRandom(ffi::ThreadPool threads, ffi::AnyBuffer left, ffi::AnyBuffer right, KeyWord first,
                            KeyWord second, ffi::ResultBuffer<ffi::F32> result, ffi::Span<const int64_t> geometry,
                            bool half, int64_t overflow) {
  const uint32_t key[] = {first.typed_data()[0], second.typed_data()[0]};
  return Multiply(threads, left, right, key, result, geometry, half, overflow);
}

XLA_FFI_DEFINE_HANDLER(kMultiply, MultiplyToNearest,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()         // left
                           .Arg<ffi::AnyBuffer>()         // right
                           .Ret<ffi::Buffer<ffi::F32>>()  // result
                           .Attr<ffi::Span<const int64_t>>("geometry")
                           .Attr<bool>("half")
                           .Attr<int64_t>("overflow"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_partial_products", "Host", kMultiply);

XLA_FFI_DEFINE_HANDLER(kMultiplyAtRandom, MultiplyAtRandom,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()         // left
                           .Arg<ffi::AnyBuffer>()         // right
                           .Arg<KeyWord>()                // first word of the key
                           .Arg<KeyWord>()                // second
                           .Ret<ffi::Buffer<ffi::F32>>()  // result
                           .Attr<ffi::Span<const int64_t>>("geometry")
                           .Attr<bool>("half")
                           .Attr<int64_t>("overflow"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_partial_products_at_random", "Host", kMultiplyAtRandom);

}  // namespace
}  // namespace tensorflow_ipu
