// What the custom call of a feed or a collective is given, read from the frame of the call itself. XLA's bindings check
// the kind of each argument and pack them into a tuple, which takes as long as all else that a feed does for a small
// element; so they answer XLA's questions about the handler alone.
#ifndef TENSORFLOW_IPU_KERNELS_FFI_FRAME_H_
#define TENSORFLOW_IPU_KERNELS_FFI_FRAME_H_

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace tensorflow_ipu {

// The layout of the frame, and what a stage and an extension are. A new version of the API is to be read first: its
// header, `xla/ffi/api/c_api.h`, says what has changed. Version 0.4, of TensorFlow 2.22, has the same frame as 0.2.
static_assert(XLA_FFI_API_MAJOR == 0 && (XLA_FFI_API_MINOR == 2 || XLA_FFI_API_MINOR == 4),
              "The frame of a call is read as versions 0.2 and 0.4 have it.");

struct Memory {
  void* data;
  std::size_t bytes;
};

inline int64_t ElementsOf(const XLA_FFI_Buffer& buffer) {
  int64_t elements = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) elements *= buffer.dims[i];
  return elements;
}

// An argument or a result, which in these calls is always a buffer.
inline void* DataOf(const void* buffer) { return static_cast<const XLA_FFI_Buffer*>(buffer)->data; }

inline Memory MemoryOf(const void* buffer) {
  const auto* const at = static_cast<const XLA_FFI_Buffer*>(buffer);
  return {at->data,
          xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(at->dtype)) * static_cast<std::size_t>(ElementsOf(*at))};
}

// The memory of argument i, as XLA's bindings have it, or as the frame has it: for the states that a call begins with.
inline auto StatesOf(const xla::ffi::RemainingArgs& arguments) {
  return [&arguments](std::size_t i) -> const void* {
    return arguments.get<xla::ffi::Buffer<xla::ffi::S64>>(i)->untyped_data();
  };
}
inline auto StatesOf(const XLA_FFI_CallFrame& frame) {
  return [&frame](std::size_t i) -> const void* { return DataOf(frame.args.args[i]); };
}

// An attribute, which is a scalar of this type.
template <typename T>
T ScalarOf(const void* attribute) {
  return *static_cast<const T*>(static_cast<const XLA_FFI_Scalar*>(attribute)->value);
}

// Whether the frame is that of a plain call, not one of XLA's questions.
inline bool IsCall(const XLA_FFI_CallFrame& frame) {
  return frame.stage == XLA_FFI_ExecutionStage_EXECUTE && frame.extension_start == nullptr;
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_FFI_FRAME_H_
