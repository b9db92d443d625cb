// The lines of the user's code that made the nodes whose kernels programs call.
//
// They are no part of a program: XLA's cache on disk would miss it once a line has moved. Each process that runs a
// program has lowered it, though it may have been compiled by another, and so knows the lines.
#ifndef TENSORFLOW_IPU_KERNELS_HOST_LINES_H_
#define TENSORFLOW_IPU_KERNELS_HOST_LINES_H_

#include <string>
#include <string_view>

namespace tensorflow_ipu {

// Notes that a node was made there; `name` is what messages call it. Thread-safe.
void NoteLine(std::string_view node, std::string_view name, const std::string& line);

// Where the node was made, in brackets and after a space; empty if that is not known. Programs may have nodes that
// differ in nothing else: then it is one line or the other. Thread-safe.
std::string LinesOf(std::string_view node, std::string_view name);

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_HOST_LINES_H_
