// What the system tells of this process.
#pragma once

#include <cstddef>

namespace tensorflow_ipu::core {

// Bytes that the process can use before the out-of-memory killer acts, on the machine or in the container. Takes about
// 10 us.
std::size_t AvailableMemory();

// Whether another thread runs, is runnable or waits for a disk. It tells a starved process from a deadlocked one. False
// where /proc is missing. Thread-safe; takes about a millisecond for 100 threads.
bool OthersCompute();

}  // namespace tensorflow_ipu::core
