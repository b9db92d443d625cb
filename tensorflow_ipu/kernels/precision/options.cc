#include "tensorflow_ipu/kernels/precision/options.h"

#include "absl/strings/str_split.h"

namespace tensorflow_ipu::precision {

Options Options::Of(std::string_view text) {
  Options options;
  for (const std::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<std::string_view, std::string_view> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto [name, value] = pair;
    if (const std::size_t colon = name.find(':'); colon != std::string_view::npos) {
      options.said[std::string(name.substr(0, colon))].emplace(name.substr(colon + 1), value);
      continue;
    }
    if (name == "inv") options.inv = value == "1";
    if (name == "div0") options.div0 = value == "1";
    if (name == "oflo") options.oflo = value == "1";
    if (name == "nanoo") options.nanoo = value == "1";
    if (name == "stable") options.stable = value == "1";
    if (name == "esr" && value == "on") options.rounding = Rounding::kStochastic;
    if (name == "esr" && value == "identical") options.rounding = Rounding::kIdenticalOnly;
    if (name == "partials_matmul") options.matmul_partials = value;
    if (name == "partials_conv") options.conv_partials = value;
  }
  return options;
}

}  // namespace tensorflow_ipu::precision
