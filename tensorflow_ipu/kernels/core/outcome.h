// The status of a call on the core.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_OUTCOME_H_
#define TENSORFLOW_IPU_KERNELS_CORE_OUTCOME_H_

#include <string>
#include <utility>

namespace tensorflow_ipu::core {

// The numbers are those of absl::StatusCode and of XLA's FFI, so that a cast converts them.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kOutOfRange = 11,
  kInternal = 13,
  kUnavailable = 14,
};

struct Outcome {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }

  static Outcome Ok() { return {}; }
  static Outcome Cancelled(std::string words) { return {Code::kCancelled, std::move(words)}; }
  static Outcome InvalidArgument(std::string words) { return {Code::kInvalidArgument, std::move(words)}; }
  static Outcome DeadlineExceeded(std::string words) { return {Code::kDeadlineExceeded, std::move(words)}; }
  static Outcome NotFound(std::string words) { return {Code::kNotFound, std::move(words)}; }
  static Outcome FailedPrecondition(std::string words) { return {Code::kFailedPrecondition, std::move(words)}; }
  static Outcome Unavailable(std::string words) { return {Code::kUnavailable, std::move(words)}; }
  static Outcome OutOfRange(std::string words) { return {Code::kOutOfRange, std::move(words)}; }
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_OUTCOME_H_
