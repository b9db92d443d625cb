#include "tensorflow_ipu/kernels/lowering/compilations.h"

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "tensorflow/compiler/jit/xla_activity_listener.h"

namespace tensorflow_ipu {
namespace {

core::Samples& Times() {
  static auto* const times = new core::Samples();
  return *times;
}

class Listener : public tensorflow::XlaActivityListener {
 public:
  absl::Status Listen(const tensorflow::XlaAutoClusteringActivity&) override { return absl::OkStatus(); }

  absl::Status Listen(const tensorflow::XlaJitCompilationActivity& done) override {
    Times().Add(core::Samples::Clock::now(), std::chrono::microseconds(done.compile_time_us()));
    return absl::OkStatus();
  }

  absl::Status Listen(const tensorflow::XlaOptimizationRemark&) override { return absl::OkStatus(); }
};

const bool listening = [] {
  tensorflow::RegisterXlaActivityListener(std::make_unique<Listener>());
  return true;
}();

}  // namespace

const core::Samples& CompileTimes() { return Times(); }

}  // namespace tensorflow_ipu
