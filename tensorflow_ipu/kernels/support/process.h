// Properties of this process that the system reports.
#pragma once

#include <cstddef>
#include <string>

namespace tensorflow_ipu::core {

// Returns how many more bytes the process can use before the out-of-memory killer acts. The limit is the machine's
// memory, or the limit of its control group (version 1 or 2) or of a group above it. Tests pass a folder to be used as
// `/`.
std::size_t AvailableMemory(const std::string& system_root = "");

// Makes the C library return free memory to the system. Takes milliseconds.
void ReturnFreedMemory();

// Returns true if another thread runs, is runnable or waits for a disk. So it distinguishes a starved process from a
// deadlocked one. Returns false if /proc is missing. Thread-safe; takes about a millisecond for 100 threads.
bool OthersCompute();

}  // namespace tensorflow_ipu::core
