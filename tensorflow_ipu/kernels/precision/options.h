// What a program asks of its numbers, as the attribute of its marker says it.
#ifndef TENSORFLOW_IPU_KERNELS_PRECISION_OPTIONS_H_
#define TENSORFLOW_IPU_KERNELS_PRECISION_OPTIONS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace tensorflow_ipu::precision {

// The custom call that a program whose numbers are those of the machine has in its entry: it takes the state that names
// the random streams, and returns the state and a key of two words (u32[2]). Its `options` are those below.
constexpr char kMarker[] = "ipu_half_precision";

enum class Rounding { kNearest, kStochastic, kIdenticalOnly };

struct Options {
  bool inv = false;
  bool div0 = false;
  bool oflo = false;
  bool nanoo = false;
  bool stable = false;  // Whether replicas round what they share alike.
  Rounding rounding = Rounding::kNearest;
  std::string matmul_partials;  // `half`, `float`, or nothing where the library chooses.
  std::string conv_partials;
  // What scopes say of operations: for an attribute of instructions and the name of an operation, its value.
  std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>> said;

  bool stops() const { return inv || div0 || oflo; }

  // Of words such as `oflo=1 esr=on ipu_stochastic_rounding:while/Exp=off`; words that it does not know are others'.
  static Options Of(std::string_view text);
};

}  // namespace tensorflow_ipu::precision

#endif  // TENSORFLOW_IPU_KERNELS_PRECISION_OPTIONS_H_
