// Handler that computes the loop indices of a pipeline.
#include <cstddef>
#include <cstdint>

#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

using Numbers = ffi::Span<const int64_t>;

// See `IpuPipelineTurns`.
enum Wanted : int64_t { kFirst = 0, kBoth = 1, kFirstAlone = 2 };

ffi::Error PipelineTurns(ffi::Buffer<ffi::S32> base, ffi::Buffer<ffi::S32> count, ffi::RemainingRets results,
                         Numbers number_of, Numbers place_of, Numbers depths, Numbers first, Numbers second,
                         Numbers wanted) {
  const int64_t begin = *base.typed_data();
  const int64_t end = *count.typed_data();
  const auto there = [begin, end](int64_t of) { return begin + of >= 0 && begin + of < end; };
  std::size_t result = 0;
  const auto give = [&results, &result](int64_t value) {
    *(*results.get<ffi::Buffer<ffi::S32>>(result++))->typed_data() = static_cast<int32_t>(value);
  };
  for (const int64_t of : number_of) give(begin + of);
  for (std::size_t i = 0; i < place_of.size(); ++i) {
    const int64_t place = (begin + place_of[i]) % depths[i];
    give(place < 0 ? place + depths[i] : place);
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    *(*results.get<ffi::Buffer<ffi::PRED>>(result++))->typed_data() =
        there(first[i]) && (wanted[i] == kFirst || there(second[i]) == (wanted[i] == kBoth));
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kPipelineTurns, PipelineTurns,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S32>>()  // base
                           .Arg<ffi::Buffer<ffi::S32>>()  // count
                           .RemainingRets()               // numbers, places, runs
                           .Attr<Numbers>("number_of")
                           .Attr<Numbers>("place_of")
                           .Attr<Numbers>("depths")
                           .Attr<Numbers>("first")
                           .Attr<Numbers>("second")
                           .Attr<Numbers>("wanted"));
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_pipeline_turns", "Host", kPipelineTurns);

}  // namespace
}  // namespace tensorflow_ipu
