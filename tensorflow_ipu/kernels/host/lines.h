// The user's lines that made the nodes whose kernels programs call. They are no part of a program, so that XLA's cache
// on disk hits when a line has moved. Each process that runs a program has lowered it, and so knows the lines.
#pragma once

#include <string>
#include <string_view>

namespace tensorflow_ipu {

// `name` is what messages call the node. Thread-safe.
void NoteLine(std::string_view node, std::string_view name, const std::string& line);

// Where the node was made, with a space and in brackets; empty if that is not known. Identical nodes have several
// lines. Thread-safe.
std::string LinesOf(std::string_view node, std::string_view name);

}  // namespace tensorflow_ipu
