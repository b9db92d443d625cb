// What the system tells of this process.
#pragma once

#include <cstddef>
#include <string>

namespace tensorflow_ipu::core {

// Returns how many bytes the process can use in addition before the out-of-memory killer acts: on the machine, or in
// its control group and the groups around it, of either version. Tests give the folder that stands for `/`.
std::size_t AvailableMemory(const std::string& system_root = "");

// Returns memory that was freed to the system, as far as the C library has kept it. Takes milliseconds.
void ReturnFreedMemory();

// Whether another thread runs, is runnable or waits for a disk. It tells a starved process from a deadlocked one. False
// where /proc is missing. Thread-safe; takes about a millisecond for 100 threads.
bool OthersCompute();

}  // namespace tensorflow_ipu::core
