#ifndef TENSORFLOW_IPU_KERNELS_CORE_STACKED_ROWS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_STACKED_ROWS_H_

#include <cstddef>
#include <cstring>

#include "tensorflow_ipu/kernels/core/outfeed.h"

namespace tensorflow_ipu::core {

// Copies one leaf of every row to `to`, with the replicas of a row side by side.
inline void StackLeaf(const Outfeed::Taken& taken, std::size_t row_bytes, std::size_t offset, std::size_t bytes,
                      std::byte* to) {
  const std::size_t lanes = taken.pieces.size();
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::byte* at = to + lane * bytes;
    for (const Rows& piece : taken.pieces[lane]) {
      const std::byte* from = piece.data.get() + static_cast<std::size_t>(piece.begin) * row_bytes + offset;
      const std::size_t rows = static_cast<std::size_t>(piece.end - piece.begin);
      if (lanes == 1 && bytes == row_bytes) {
        std::memcpy(at, from, rows * bytes);
        at += rows * bytes;
        continue;
      }
      for (std::size_t row = 0; row < rows; ++row) {
        std::memcpy(at, from + row * row_bytes, bytes);
        at += lanes * bytes;
      }
    }
  }
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_STACKED_ROWS_H_
