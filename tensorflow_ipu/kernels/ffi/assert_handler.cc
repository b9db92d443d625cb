// Handler of an assertion: fails with TensorFlow's message.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/ffi/reply.h"
#include "tensorflow_ipu/kernels/host/lines.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;
namespace tf = tensorflow;

std::string Summary(const ffi::AnyBuffer& buffer, int64_t entries) {
  // The enumerations have the same values.
  const absl::StatusOr<tf::DataType> type =
      tf::EncodePrimitiveTypeAsDataType(static_cast<xla::PrimitiveType>(buffer.element_type()));
  if (!type.ok()) return "?";
  const auto dimensions = buffer.dimensions();
  tf::Tensor tensor(*type, tf::TensorShape(absl::Span<const int64_t>(dimensions.begin(), dimensions.size())));
  if (buffer.size_bytes() > 0) std::memcpy(tensor.data(), buffer.untyped_data(), buffer.size_bytes());
  return tensor.SummarizeValue(entries);
}

ffi::Error Assert(std::string_view data, std::string_view name, int64_t summarize, ffi::Buffer<ffi::PRED> condition,
                  ffi::RemainingArgs values, ffi::ResultBuffer<ffi::PRED> holds) {
  holds->typed_data()[0] = true;
  if (condition.typed_data()[0]) return ffi::Error::Success();
  std::string message = absl::StrCat(name, LinesOf(data, name), ": assertion failed:");
  std::size_t value = 0;
  while (!data.empty()) {
    const std::string_view part = data.substr(0, data.find('\0'));
    data.remove_prefix(part.size() + 1);
    absl::StrAppend(
        &message, " [",
        part[0] == '=' ? std::string(part.substr(1)) : Summary(*values.get<ffi::AnyBuffer>(value++), summarize), "]");
  }
  return ffi::Error::InvalidArgument(message);
}

XLA_FFI_DEFINE_HANDLER(kAssert, Assert,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("data")
                           .Attr<std::string_view>("name")
                           .Attr<int64_t>("summarize")
                           .Arg<ffi::Buffer<ffi::PRED>>()    // condition
                           .RemainingArgs()                  // values
                           .Ret<ffi::Buffer<ffi::PRED>>());  // holds
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_assert", "Host", kAssert);

}  // namespace
}  // namespace tensorflow_ipu
