// Tests that threads that compute are distinguished from threads that wait, and the memory that control groups leave.
#include "tensorflow_ipu/kernels/support/process.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

using check::Becomes;
using check::Count;
using tensorflow_ipu::core::AvailableMemory;
using tensorflow_ipu::core::OthersCompute;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A folder that is used as `/`, of a machine with 4,000 MiB of memory and 500 MiB of swap.
class System {
 public:
  System() {
    char name[] = "/tmp/process_test_XXXXXX";
    root_ = mkdtemp(name);
    Write("proc/meminfo", "MemTotal: 8192000 kB\nMemAvailable: 4096000 kB\nSwapFree: 512000 kB\n");
  }
  ~System() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  // Writes the files `memory.<name>` of a group.
  void WriteGroup(const std::string& group, const std::vector<std::pair<std::string, std::string>>& files) const {
    for (const auto& [name, text] : files) Write(group + "/memory." + name, text + "\n");
  }

  std::size_t AvailableMiB() const { return AvailableMemory(root_.string()) / kMiB; }

 private:
  std::filesystem::path root_;
};

std::string MiB(std::size_t count) { return std::to_string(count * kMiB); }

// A regression: only the root of version 2 was read, and the kernel killed processes in all other groups.
TEST(Process, the_limit_of_a_group_of_version_1_applies) {
  const System system;
  system.Write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/\n");
  system.Write("proc/self/mountinfo",
               "34 31 0:31 / /groups/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
               "35 31 0:32 / /groups/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n");
  EXPECT_EQ(system.AvailableMiB(), std::size_t{4500});
  system.WriteGroup("groups/memory/jobs/7", {{"limit_in_bytes", MiB(1000)}, {"usage_in_bytes", MiB(300)}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{700});
  system.WriteGroup("groups/memory/jobs/7",
                    {{"stat", "total_inactive_file " + MiB(40) + "\ntotal_active_file " + MiB(60)},
                     {"memsw.limit_in_bytes", MiB(1200)}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{1000});
  system.WriteGroup("groups/memory", {{"limit_in_bytes", "9223372036854771712"}, {"usage_in_bytes", MiB(5000)}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{1000});
  system.WriteGroup("groups/memory/jobs", {{"limit_in_bytes", MiB(800)}, {"usage_in_bytes", MiB(790)}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{10});
}

TEST(Process, the_limits_of_a_nested_group_of_version_2_and_of_its_parents_apply) {
  const System system;
  system.Write("proc/self/cgroup", "0::/user.slice/job\n");
  system.Write("proc/self/mountinfo", "24 23 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
  EXPECT_EQ(system.AvailableMiB(), std::size_t{4500});
  system.WriteGroup("sys/fs/cgroup/user.slice/job", {{"max", MiB(600)}, {"current", MiB(100)}, {"swap.max", "0"}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{500});
  system.WriteGroup("sys/fs/cgroup/user.slice", {{"max", MiB(300)}, {"current", MiB(100)}, {"swap.max", MiB(9000)}});
  // The sum of 200 MiB and all of the machine's 500 MiB of swap, but at most the 500 MiB of the nested group.
  EXPECT_EQ(system.AvailableMiB(), std::size_t{500});
  system.WriteGroup("sys/fs/cgroup/user.slice", {{"swap.max", "max"}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{200});
  system.WriteGroup("sys/fs/cgroup/user.slice", {{"max", "max"}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{500});
}

TEST(Process, a_container_that_shows_its_group_as_the_root_is_limited_by_it) {
  const System system;
  system.Write("proc/self/cgroup", "4:memory:/docker/12ab\n");
  system.Write("proc/self/mountinfo", "35 31 0:32 /docker/12ab /groups/memory ro - cgroup cgroup rw,memory\n");
  system.WriteGroup("groups/memory", {{"limit_in_bytes", MiB(64)}, {"usage_in_bytes", MiB(80)}});
  EXPECT_EQ(system.AvailableMiB(), std::size_t{0});
}

TEST(Process, a_system_that_does_not_report_its_memory_has_no_limit) {
  const System system;
  system.Write("proc/meminfo", "");
  EXPECT_TRUE(system.AvailableMiB() > std::size_t{1} << 40);
}

TEST(Process, a_computing_thread_is_detected_but_not_a_waiting_one_or_the_caller) {
  Count released;
  std::atomic<bool> compute{true};
  check::Threads threads;
  threads.Start([&] {
    while (compute) {
    }
    released.Await();
  });
  EXPECT_TRUE(Becomes([] { return OthersCompute(); }));
  compute = false;
  EXPECT_TRUE(Becomes([] { return !OthersCompute(); }));
  released.Add();
}

}  // namespace
