// The floating-point configuration of a program, from the attribute of its marker.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_OPTIONS_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_OPTIONS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tensorflow_ipu::precision {

// The custom call in the entry of a program that emulates the machine's arithmetic. It takes the state of the random
// streams, and returns the state and two keys of two words (u32).
constexpr char kMarker[] = "ipu_half_precision";

enum class Rounding { kNearest, kStochastic, kIdenticalOnly };

struct Options {
  bool inv = false;
  bool div0 = false;
  bool oflo = false;
  bool nanoo = false;
  bool stable = false;  // Whether replicas round equal values alike.
  Rounding rounding = Rounding::kNearest;
  std::string matmul_partials;  // `half`, `float`, or empty for the library's choice.
  std::string conv_partials;
  // Attributes of single operations that scopes set: attribute -> operation name -> value.
  std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>> said;

  bool stops() const { return inv || div0 || oflo; }

  // Parses words such as `oflo=1 esr=on ipu_stochastic_rounding:while/Exp=off`; ignores unknown ones.
  static Options Of(std::string_view text);
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_OPTIONS_H_
