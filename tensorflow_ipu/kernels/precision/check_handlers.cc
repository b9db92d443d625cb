// The handler that checks a program for floating-point exceptions.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "tensorflow_ipu/kernels/ffi/binding.h"
#include "tensorflow_ipu/kernels/host/releases.h"
#include "tensorflow_ipu/kernels/numerics/scan.h"
#include "tensorflow_ipu/kernels/precision/late_program.h"
#include "tensorflow_ipu/kernels/replicas/device_state.h"
#include "tensorflow_ipu/kernels/support/program_state.h"

namespace tensorflow_ipu {
namespace {

namespace ffi = xla::ffi;

constexpr uint32_t kInfinite = 0x7f800000;  // The bits of float32 infinity; the bits of NaNs are larger.

constexpr char kKept[] =
    ". The variables are as they were before that step, except for those that a loop in it had already updated. "
    "`IPUConfig.floating_point_behaviour` sets what stops a program";

uint32_t WordAt(const void* data) { return *static_cast<const uint32_t*>(data); }

// Returns true if an array has a NaN or, with `or_infinity`, an infinity.
bool HasNan(const precision::HostArray& array, bool or_infinity) {
  const uint32_t next = or_infinity ? 0 : 1;
  return array.half ? core::HasHalvesFrom(static_cast<uint16_t>(0x7c00 + next),
                                          static_cast<const uint16_t*>(array.data), array.elements)
                    : core::HasFloatsFrom(kInfinite + next, static_cast<const uint32_t*>(array.data), array.elements);
}

// An operation that stops the program, unless one of its operands already had a NaN or an infinity.
struct Suspect {
  int64_t order = 0;
  std::string_view type;  // The type of the result: `half`, `float`, or `f8` for a conversion that overflows.
  std::string what;
  std::string_view sources;  // The indices of the source values, separated by commas.
  bool by_zero = false;
  uint32_t magnitude = 0;  // The bits of a float32.
};

// Returns the operations that the stop codes identify. `operations` is the text that `precision/checks.cc` writes.
// `values` begins with the stop codes.
std::vector<Suspect> Suspects(std::string_view operations, const std::vector<precision::HostArray>& values) {
  std::vector<Suspect> suspects;
  std::size_t index = 0;
  for (const std::string_view group : absl::StrSplit(operations, "\n\n", absl::SkipEmpty())) {
    const uint32_t word = WordAt(values[index++].data);
    if (word == 0) continue;
    const std::vector<std::string_view> lines = absl::StrSplit(group, '\n');
    const std::vector<std::string_view> fields = absl::StrSplit(lines[255 - (word >> 24)], ' ');
    Suspect suspect{0,         fields[1],       absl::StrCat(fields[2], " `", fields[3], "`"),
                    fields[4], (word & 1) != 0, (word & 0xfffffe) << 7};
    if (!absl::SimpleAtoi(fields[0], &suspect.order)) continue;
    suspects.push_back(std::move(suspect));
  }
  std::sort(suspects.begin(), suspects.end(), [](const Suspect& a, const Suspect& b) { return a.order < b.order; });
  return suspects;
}

// Returns why an operation stops the program, or nothing if it does not. `traps` names the exceptions that stop it.
std::optional<std::string> Why(const Suspect& suspect, std::string_view traps,
                               absl::Span<const precision::HostArray> sources) {
  const auto has_taken = [&](bool or_infinity) {
    for (const std::string_view text : absl::StrSplit(suspect.sources, ',', absl::SkipEmpty())) {
      std::size_t source = 0;
      if (absl::SimpleAtoi(text, &source) && HasNan(sources[source], or_infinity)) return true;
    }
    return false;
  };
  float value = 0;
  std::memcpy(&value, &suspect.magnitude, sizeof(value));
  if (suspect.magnitude > kInfinite) {
    if (!absl::StrContains(traps, "inv") || has_taken(false)) return std::nullopt;
    return absl::StrCat(suspect.what, " gave a NaN, from operands without one (inv)");
  }
  if (has_taken(true)) return std::nullopt;
  if (suspect.by_zero && absl::StrContains(traps, "div0")) {
    return absl::StrCat(suspect.what, " divided by zero (div0)");
  }
  if (!absl::StrContains(traps, "oflo") || suspect.type == "float") return std::nullopt;
  if (suspect.type == "f8") {
    return absl::StrCat(suspect.what, " was given ", absl::StrFormat("%.5g", value),
                        ", for which its format of eight bits has no number (oflo)");
  }
  return absl::StrCat(suspect.what, " gave ", absl::StrFormat("%.5g", value),
                      ", and the largest number of float16 is 65504 (oflo)");
}

bool HasFrom(int64_t limit, const ffi::AnyBuffer& tensor) {
  const auto count = static_cast<int64_t>(tensor.element_count());
  if (tensor.element_type() == ffi::F16) {
    return core::HasHalvesFrom(static_cast<uint16_t>(limit), static_cast<const uint16_t*>(tensor.untyped_data()),
                               count);
  }
  return core::HasFloatsFrom(static_cast<uint32_t>(limit), static_cast<const uint32_t*>(tensor.untyped_data()), count);
}

// The recomputation of a check in a program; see `precision/checks.h`.
struct RecomputationOfCheck {
  explicit RecomputationOfCheck(std::string_view serialized) : program(serialized) {}

  static ffi::TypeId id;
  precision::LateProgram program;
};
ffi::TypeId RecomputationOfCheck::id = {};

ffi::ErrorOr<std::unique_ptr<RecomputationOfCheck>> BeginCheck(ffi::Dictionary attributes) {
  return std::make_unique<RecomputationOfCheck>(TextOf(attributes, "program"));
}

// Scans the results, and sets `has_failed` if the program must stop. The attribute `limits` contains, for each scanned
// result, the bits of the smallest magnitude that may stop the program.
ffi::Error Check(RecomputationOfCheck* recomputation, ffi::RemainingArgs arguments,
                 ffi::ResultBuffer<ffi::PRED> has_failed, ffi::Dictionary attributes) {
  const auto data = [&](std::size_t i) { return arguments.get<ffi::AnyBuffer>(i)->untyped_data(); };
  bool& result = has_failed->typed_data()[0];
  result = *static_cast<const bool*>(data(0));
  if (result) return ffi::Error::Success();
  // The index of the first argument to scan. `precision/checks.cc` defines their order.
  constexpr std::size_t kScanned = 2;
  const auto limits = *attributes.get<ffi::Span<const int64_t>>("limits");
  bool suspect = false;
  for (std::size_t i = 0; i < limits.size() && !suspect; ++i) {
    suspect = HasFrom(limits[i], *arguments.get<ffi::AnyBuffer>(kScanned + i));
  }
  if (!suspect) return ffi::Error::Success();
  const std::vector<std::string_view> around = absl::StrSplit(TextOf(attributes, "loops"), ' ', absl::SkipEmpty());
  const std::size_t iterations = kScanned + limits.size();
  std::vector<void*> taken;
  for (std::size_t i = iterations + around.size(); i < arguments.size(); ++i) taken.push_back(data(i));
  const absl::StatusOr<precision::LateProgram::Results> computed = recomputation->program.Run(taken);
  if (!computed.ok()) return ToError(computed.status());
  std::optional<std::string> reason;
  const auto codes = static_cast<std::size_t>(*attributes.get<int64_t>("words"));
  const auto sources = absl::MakeConstSpan(computed->arrays).subspan(codes);
  const std::vector<Suspect> suspects = Suspects(TextOf(attributes, "operations"), computed->arrays);
  const std::string_view traps = TextOf(attributes, "options");
  for (std::size_t i = 0; i < suspects.size() && !reason; ++i) reason = Why(suspects[i], traps, sources);
  if (!reason.has_value()) return ffi::Error::Success();
  const core::ProgramState at = core::StateAt(data(1));
  if (at.replicas > 1) absl::StrAppend(&*reason, ", on replica ", at.replica);
  for (std::size_t loop = around.size(); loop-- > 0;) {
    absl::StrAppend(&*reason, ", in iteration ", WordAt(data(iterations + loop)), " of the loop `", around[loop], "`");
  }
  const std::shared_ptr<core::RandomStreams> streams = RandomStreams().Find(at.number);
  if (streams == nullptr) return ToError(RandomStreamsGone());
  NoteFault(streams.get(), at.replica, absl::StrCat("Floating point exception: ", *reason, kKept));
  result = true;
  return ffi::Error::Success();
}

IPU_REGISTER_STATE("ipu_recomputation_of_check", RecomputationOfCheck);

XLA_FFI_DEFINE_HANDLER(kBeginCheck, BeginCheck, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(
    kCheck, Check,
    ffi::Ffi::Bind().Ctx<ffi::State<RecomputationOfCheck>>().RemainingArgs().Ret<ffi::Buffer<ffi::PRED>>().Attrs());
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), "ipu_half_check", "Host", {kBeginCheck, nullptr, nullptr, kCheck});

}  // namespace
}  // namespace tensorflow_ipu
