// The lines of the user's source that created the nodes whose kernels programs call. They are not part of a program, so
// that XLA's cache on disk hits after a line has moved. Each process that runs a program has lowered it before, and so
// knows the lines.
#pragma once

#include <string>
#include <string_view>

namespace tensorflow_ipu {

// Records a line that created `node`. `name` is the node's name in messages. Thread-safe.
void NoteLine(std::string_view node, std::string_view name, const std::string& line);

// Returns the lines that created the node, in brackets after a space; empty if none is known. Identical nodes have
// several lines. Thread-safe.
std::string LinesOf(std::string_view node, std::string_view name);

}  // namespace tensorflow_ipu
