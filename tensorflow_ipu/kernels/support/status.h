// The status of a call on the core.
#pragma once

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

struct Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }

  static Status Ok() { return {}; }
  static Status Cancelled(std::string words) { return {Code::kCancelled, std::move(words)}; }
  static Status InvalidArgument(std::string words) { return {Code::kInvalidArgument, std::move(words)}; }
  static Status DeadlineExceeded(std::string words) { return {Code::kDeadlineExceeded, std::move(words)}; }
  static Status NotFound(std::string words) { return {Code::kNotFound, std::move(words)}; }
  static Status FailedPrecondition(std::string words) { return {Code::kFailedPrecondition, std::move(words)}; }
  static Status Unavailable(std::string words) { return {Code::kUnavailable, std::move(words)}; }
  static Status OutOfRange(std::string words) { return {Code::kOutOfRange, std::move(words)}; }
};

}  // namespace tensorflow_ipu::core
