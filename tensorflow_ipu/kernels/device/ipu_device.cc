// The TensorFlow devices /device:IPU:<n>, which run the host's kernels on the host's memory under the IPU's name.
#include "tensorflow_ipu/kernels/device/ipu_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tensorflow_ipu/kernels/host/host_device.h"
#include "tensorflow_ipu/kernels/host/threads.h"
#include "tensorflow_ipu/kernels/replicas/copies.h"
#include "tensorflow_ipu/kernels/replicas/device_memory.h"
#include "tensorflow_ipu/kernels/replicas/device_turns.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu {
namespace {

namespace tf = tensorflow;

struct System {
  absl::Mutex mutex;
  std::vector<Configured> devices ABSL_GUARDED_BY(mutex) = {{1, Connection::kAlways}};
};

System& TheSystem() { return core::NeverDestroyed<System>(); }

constexpr int kDefaultDevices = 8;  // As in `_base/environment.py`.

bool IsCompiled(const tf::OpKernel& kernel) { return kernel.def().attr().count("_XlaMustCompile") > 0; }

// Returns true if the op takes a variable and does not write it. Such ops read the variable, pass it on, or call
// functions. The ops of a function are checked one by one, unless the function is compiled.
bool OnlyReads(const tf::OpKernel& kernel) {
  constexpr char kReaders[] =
      "Case DestroyResourceOp DisableCopyOnRead Enter Exit Identity IdentityN If IpuReplicaRead IpuReplicaWrite "
      "IpuReplicatedRun Merge NextIteration PartitionedCall ReadVariableOp ResourceGather ResourceGatherNd "
      "StatefulPartitionedCall StatelessIf StatelessWhile Switch VarIsInitializedOp VariableShape While "
      "_ReadVariablesOp _Retval _SwitchN";
  static const auto* const readers = new absl::flat_hash_set<std::string>(absl::StrSplit(kReaders, ' '));
  return readers->contains(kernel.type_string()) && !IsCompiled(kernel);
}

// Returns true for ops that create and destroy variables or move their values. They run on devices that are not
// configured too, since programs for several devices are often built before the configuration.
bool ManagesVariables(const tf::OpKernel& kernel) {
  constexpr char kVariableOps[] =
      "AssignVariableOp Const DestroyResourceOp Fill VarHandleOp VarIsInitializedOp _Arg _EagerConst _HostRecv "
      "_HostSend _Recv _Retval _Send";
  static const auto* const ops = new absl::flat_hash_set<std::string>(absl::StrSplit(kVariableOps, ' '));
  return ops->contains(kernel.type_string());
}

// Records that variables with copies on replicas are written outside of programs.
void NoteWrites(const tf::OpKernel& kernel, tf::OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    // Loops and branches have inputs without a value, which have no type.
    if (!context->has_input(i) || context->input_dtype(i) != tf::DT_RESOURCE) continue;
    if (OnlyReads(kernel)) return;
    tf::core::RefCountPtr<tf::Var> variable;
    if (tf::LookupResource(context, tf::HandleFromInput(context, i), &variable).ok()) {
      Copies::Global().NoteWrite(variable.get());
    }
  }
}

const core::Counter reads("VariableReads"), read_bytes("VariableReadBytes");
const core::Counter writes("VariableWrites"), write_bytes("VariableWriteBytes");

// Counts the host's reads and writes of variables by single operations, which are not part of programs.
void CountTransfer(const tf::OpKernel& kernel, tf::OpKernelContext* context) {
  const std::string& type = kernel.type_string();
  if (type == "ReadVariableOp") {
    const tf::Tensor* const read = context->status().ok() ? context->mutable_output(0) : nullptr;
    if (read == nullptr) return;
    reads.Add();
    read_bytes.Add(static_cast<int64_t>(read->TotalBytes()));
  } else if (type == "AssignVariableOp") {
    writes.Add();
    write_bytes.Add(static_cast<int64_t>(context->input(1).TotalBytes()));
  }
}

class IpuDevice : public HostDevice {
 public:
  IpuDevice(const tf::SessionOptions& options, const std::string& name, int ordinal)
      : HostDevice(options, name, tf::Bytes(int64_t{16} << 30), tf::DeviceLocality(), DeviceAllocator()),
        ordinal_(ordinal) {
    DivideThreads();
  }

  IpuDevice(IpuDevice& original, const std::string& name) : HostDevice(original, name), ordinal_(original.ordinal_) {
    DivideThreads();
  }

  std::unique_ptr<HostDevice> Copy(const std::string& name) override {
    return std::make_unique<IpuDevice>(*this, name);
  }

  // The type is CPU, so that all host kernels and XLA:CPU support the device. TensorFlow finds no platform for programs
  // on devices of another type.
  const std::string& device_type() const override {
    static const std::string* const type = new std::string("CPU");
    return *type;
  }

  // Returns the threads of a compiled program that this thread starts. If TensorFlow limits the parallelism of this
  // thread, returns a pool that reports fewer threads: Eigen applies the limit itself, but other users of the pool do
  // not.
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override {
    const auto allowed = static_cast<std::size_t>(std::max(1, tf::GetPerThreadMaxParallelism()));
    if (allowed > fewer_threads_.size()) return ThreadPoolDevice::eigen_cpu_device();
    return fewer_threads_[allowed - 1]->device();
  }

  void Compute(tf::OpKernel* kernel, tf::OpKernelContext* context) override {
    if (!Exists(context)) return;
    BeforeProgram(*kernel);
    if (IsCompiled(*kernel)) return RunProgram(kernel, context);
    if (Copies::Any()) NoteWrites(*kernel, context);
    HostDevice::Compute(kernel, context);
    CountTransfer(*kernel, context);
  }

  void ComputeAsync(tf::AsyncOpKernel* kernel, tf::OpKernelContext* context,
                    tf::AsyncOpKernel::DoneCallback done) override {
    if (!Exists(context)) return done();
    BeforeProgram(*kernel);
    if (IsCompiled(*kernel)) {
      RunProgram(kernel, context);  // TensorFlow's kernel blocks this thread too.
      return done();
    }
    if (Copies::Any()) NoteWrites(*kernel, context);
    HostDevice::ComputeAsync(kernel, context, std::move(done));
  }

 private:
  void DivideThreads() {
    Eigen::ThreadPoolInterface* const pool = ThreadPoolDevice::eigen_cpu_device()->getPool();
    HostThreads::Know(pool);
    for (int count = 1; count < pool->NumThreads(); ++count) {
      fewer_threads_.push_back(std::make_unique<FewerThreads>(pool, count));
    }
  }

  // Runs a compiled program with one replica.
  void RunProgram(tf::OpKernel* kernel, tf::OpKernelContext* context) {
    const bool takes_turn = !RunsApplication();
    if (takes_turn) {
      const absl::Status turn = AwaitTurn(context, ordinal_);
      if (!turn.ok()) return context->SetStatus(turn);
    }
    if (Copies::Any()) NoteWrites(*kernel, context);
    {
      const RunMemory memory(context);
      HostDevice::Compute(kernel, context);
    }
    if (!context->status().ok()) RestoreStates(context);
    if (takes_turn) EndTurn(ordinal_);
  }

  // Installs the device's compiler before its first program runs.
  void BeforeProgram(const tf::OpKernel& kernel) ABSL_LOCKS_EXCLUDED(compiler_mutex_) {
    if (has_compiler_.load(std::memory_order_acquire)) return;
    if (!IsCompiled(kernel) && kernel.type_string() != "IpuReplicatedRun") return;
    const absl::MutexLock lock(&compiler_mutex_);
    if (has_compiler_.load(std::memory_order_relaxed)) return;
    if (auto* const install = install_compiler.load(); install != nullptr) install(this);
    has_compiler_.store(true, std::memory_order_release);
  }

  bool Exists(tf::OpKernelContext* context) const {
    const int count = configured_devices.load(std::memory_order_relaxed);
    if (ordinal_ < count) return true;
    if (ManagesVariables(context->op_kernel())) return true;
    context->SetStatus(absl::FailedPreconditionError(
        absl::StrCat("`/device:IPU:", ordinal_, "` is not configured: the system has ", count,
                     " IPU device(s), the last of them `/device:IPU:", count - 1,
                     "`. Set `IPUConfig.auto_select_ipus` to a list of ", ordinal_ + 1,
                     " or more IPU counts, a count a device, and call `configure_ipu_system()`.")));
    return false;
  }

  const int ordinal_;
  absl::Mutex compiler_mutex_;
  std::atomic<bool> has_compiler_{false};
  std::vector<std::unique_ptr<FewerThreads>> fewer_threads_;  // By their number of threads: 1, 2, ...
};

class IpuDeviceFactory : public tf::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    for (int i = 0; i < registered_; ++i) devices->push_back("/physical_device:IPU:" + std::to_string(i));
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const tf::SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<tf::Device>>* devices) override {
    for (int i = 0; i < registered_; ++i) {
      devices->push_back(std::make_unique<IpuDevice>(options, prefix + "/device:IPU:" + std::to_string(i), i));
    }
    return absl::OkStatus();
  }

 private:
  // The variable is read when this library is loaded, right after the package has validated the value.
  static int Registered() {
    const char* const value = std::getenv("TENSORFLOW_IPU_DEVICES");
    const int count = value == nullptr ? kDefaultDevices : std::atoi(value);
    return count > 0 ? count : kDefaultDevices;
  }

  const int registered_ = Registered();
};

REGISTER_LOCAL_DEVICE_FACTORY("IPU", IpuDeviceFactory, 200);

}  // namespace

void ConfigureDevices(std::vector<Configured> devices) {
  System& system = TheSystem();
  const absl::MutexLock lock(&system.mutex);
  configured_devices = static_cast<int32_t>(devices.size());
  system.devices = std::move(devices);
}

Configured ConfiguredAt(int64_t ordinal) {
  System& system = TheSystem();
  const absl::MutexLock lock(&system.mutex);
  const std::vector<Configured>& devices = system.devices;
  return ordinal >= 0 && ordinal < static_cast<int64_t>(devices.size()) ? devices[ordinal] : Configured{};
}

}  // namespace tensorflow_ipu
