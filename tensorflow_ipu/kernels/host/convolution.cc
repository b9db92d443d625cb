#include "tensorflow_ipu/kernels/host/convolution.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_ipu/kernels/numerics/processor.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

#if IPU_X86

namespace {

// Each register holds 16 channels of one output position. A tile has 7 to 16 positions. Its sums stay in registers
// during the loops over the channels and the elements of the filter, so each result is written once. An element of the
// images is loaded once for all columns of the filter. One step of a tile is:
//
//   v = image[row][x][channel], in all lanes
//   tile[x]     += v * filter[row][0][channel][16 channels]
//   tile[x - 1] += v * filter[row][1][channel][16 channels]
//   tile[x - 2] += v * filter[row][2][channel][16 channels]
//
// So 3 products need 1.1 loads. Two cores of 4 GHz compute 500 GFLOPS, which is 0.95 of their peak.

#define IPU_LANES __attribute__((target("avx512f")))
#define IPU_UNROLL _Pragma("GCC unroll 32")

constexpr int kLanes = 16, kColumns = 3, kDepth = 8;
constexpr std::size_t kMostFilter = 1 << 20;       // In bytes. Such a filter stays in a second-level cache.
constexpr int64_t kUnitsOfThread = 4;              // Units of work per thread, if there are enough rows.
constexpr int64_t kFilterRow = kColumns * kLanes;  // The floats of one row of the filter for one input channel.

// Allocates memory without initializing it.
std::unique_ptr<float[]> Scratch(int64_t count) {
  return std::unique_ptr<float[]>(new float[static_cast<std::size_t>(count)]);
}

struct Images {
  int64_t count, rows, columns, channels;

  int64_t image() const { return rows * columns * channels; }
  int64_t blocks() const { return (channels + kLanes - 1) / kLanes; }
};

// Copies rows of an image to [block][row][column][16 channels] and pads them with zeros. `left` columns of zeros
// precede the first column, and zeros fill each row to `width` columns. Rows before the first and after the last one
// are zeros.
IPU_LANES void CopyPadded(const float* image, const Images& images, int64_t first, int64_t rows, int64_t left,
                          int64_t width, float* to) {
  const auto zeros = [](float* begin, int64_t columns) {
    std::memset(begin, 0, static_cast<std::size_t>(columns * kLanes) * sizeof(float));
  };
  for (int64_t block = 0; block < images.blocks(); ++block) {
    const auto count = static_cast<int>(std::min<int64_t>(kLanes, images.channels - block * kLanes));
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    for (int64_t row = first; row < first + rows; ++row, to += width * kLanes) {
      if (row < 0 || row >= images.rows) {
        zeros(to, width);
        continue;
      }
      zeros(to, left);
      zeros(to + (left + images.columns) * kLanes, width - left - images.columns);
      const float* from = image + row * images.columns * images.channels + block * kLanes;
      for (int64_t column = 0; column < images.columns; ++column, from += images.channels) {
        _mm512_storeu_ps(to + (left + column) * kLanes, _mm512_maskz_loadu_ps(lanes, from));
      }
    }
  }
}

// The input and output of a tile of `R` rows and `P` columns.
struct Tile {
  int64_t row, block;  // Distances between rows, and between blocks of channels, of the images.
  int64_t channels;
  int64_t tap, filters;  // Distances between rows of the filter, and between its blocks.
  int64_t out_row, out_column;
  const float* image = nullptr;   // Padded; at the first row of the filter.
  const float* filter = nullptr;  // [block][row][channel][column][16 channels]
  float* out = nullptr;
  int64_t taps = 0;  // The number of the filter's rows that are used.
};

// Computes a tile. `S` is the filter's stride. `D` is the distance between columns of the images; the columns in
// between are zeros.
template <int R, int P, int S, int D>
IPU_LANES __attribute__((noinline)) void Compute(const Tile& tile) {
  __m512 sums[R][P];
  IPU_UNROLL for (int r = 0; r < R; ++r) { IPU_UNROLL for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps(); }
  const float *image = tile.image, *filters = tile.filter;
  for (int64_t remaining = tile.channels; remaining > 0;
       remaining -= kLanes, image += tile.block, filters += tile.filters) {
    const int64_t channels = std::min<int64_t>(remaining, kLanes);
    for (int64_t tap = 0; tap < tile.taps; ++tap) {
      const float *x = image + tap * tile.row, *filter = filters + tap * tile.tap;
      for (int64_t channel = 0; channel < channels; ++channel, ++x, filter += kFilterRow) {
        __m512 columns[kColumns];
        IPU_UNROLL for (int k = 0; k < kColumns; ++k) columns[k] = _mm512_loadu_ps(filter + k * kLanes);
        IPU_UNROLL for (int r = 0; r < R; ++r) {
          IPU_UNROLL for (int i = 0; i <= ((P - 1) * S + kColumns - 1) / D; ++i) {
            const __m512 value = _mm512_set1_ps(x[r * S * tile.row + i * kLanes]);
            IPU_UNROLL for (int k = 0; k < kColumns; ++k) {
              const int p = i * D - k;
              if (p >= 0 && p % S == 0 && p / S < P) {
                sums[r][p / S] = _mm512_fmadd_ps(value, columns[k], sums[r][p / S]);
              }
            }
          }
        }
      }
    }
  }
  IPU_UNROLL for (int r = 0; r < R; ++r) {
    IPU_UNROLL for (int p = 0; p < P; ++p) {
      _mm512_storeu_ps(tile.out + r * tile.out_row + p * tile.out_column, sums[r][p]);
    }
  }
}

struct Kernel {
  int rows, columns;
  void (*compute)(const Tile&);
};

// With few positions in one row, each sum would wait for its previous addition. So a tile has two rows, unless every
// other row is zeros.
template <int D>
constexpr int kRows = D == 1 ? 2 : 1;

template <int S, int D>
constexpr Kernel kKernels[] = {{1, 16, Compute<1, 16, S, D>},
                               {1, 14, Compute<1, 14, S, D>},
                               {kRows<D>, 8, Compute<kRows<D>, 8, S, D>},
                               {kRows<D>, 7, Compute<kRows<D>, 7, S, D>}};

// Returns the kernel that computes the fewest positions twice. Tiles overlap if the columns are no multiple of their
// width. Returns null if none fits, or if it would be slower than oneDNN's.
const Kernel* KernelFor(int64_t rows, int64_t columns, int64_t stride, int64_t gap) {
  const Kernel* best = nullptr;
  int64_t fewest = columns + columns / 16 + 1;
  for (const Kernel& kernel : gap == 2 ? kKernels<1, 2> : stride == 2 ? kKernels<2, 1> : kKernels<1, 1>) {
    const int64_t computed = (columns + kernel.columns - 1) / kernel.columns * kernel.columns;
    if (kernel.columns > columns || kernel.rows > rows || kernel.columns % gap != 0 || computed >= fewest) continue;
    best = &kernel;
    fewest = computed;
  }
  return best;
}

// A convolution of `in` by a filter [rows, 3, in, out]. `turned`: a convolution of gradients by the filter rotated by
// 180 degrees.
struct Pass {
  Images in, out;
  int64_t filter_rows;
  int64_t stride, gap;  // One of them is 1.
  int64_t top, left;    // Padding before the images, counted in positions that include the gaps.
  bool turned;
};

int64_t Floor(int64_t value, int64_t by) { return value >= 0 ? value / by : -((by - 1 - value) / by); }

// Writes the filter as [out block][in block][row][channel][column][16 channels].
void PackFilter(const float* filter, const Pass& pass, float* to) {
  const int64_t in = pass.in.channels, out = pass.out.channels, taps = pass.filter_rows * kColumns;
  // Distances between channels.
  const int64_t in_distance = pass.turned ? 1 : out, out_distance = pass.turned ? in : 1;
  for (int64_t block = 0; block < out; block += kLanes) {
    for (int64_t first = 0; first < in; first += kLanes) {
      for (int64_t row = 0; row < taps; row += kColumns) {
        for (int64_t channel = first; channel < std::min<int64_t>(first + kLanes, in); ++channel) {
          for (int64_t tap = row; tap < row + kColumns; ++tap, to += kLanes) {
            const int64_t place = pass.turned ? taps - 1 - tap : tap;
            const float* const from = filter + place * in * out + channel * in_distance + block * out_distance;
            for (int64_t lane = 0; lane < kLanes; ++lane) to[lane] = from[lane * out_distance];
          }
        }
      }
    }
  }
}

void ComputeBand(const Pass& pass, const Kernel& kernel, const float* images, const float* filter, int64_t first,
                 int64_t last, int64_t width, float* padded, float* out) {
  const int64_t lowest = Floor(first * pass.stride - pass.top, pass.gap);
  const int64_t rows = Floor((last - 1) * pass.stride + pass.filter_rows - 1 - pass.top, pass.gap) - lowest + 1;
  CopyPadded(images, pass.in, lowest, rows, pass.left / pass.gap, width, padded);
  const int64_t row_size = width * kLanes, tap_size = std::min<int64_t>(kLanes, pass.in.channels) * kFilterRow;
  const int64_t columns = pass.out.columns, channels = pass.out.channels;
  Tile tile{row_size,           rows * row_size, pass.in.channels, pass.gap * tap_size, pass.filter_rows * tap_size,
            columns * channels, channels};
  for (int64_t channel = 0; channel < channels; channel += kLanes) {
    for (int64_t row = first; row < last; row += kernel.rows) {
      const int64_t y = std::min(row, last - kernel.rows);
      // The row of the images, including gaps, at the filter's first row.
      const int64_t high = y * pass.stride - pass.top;
      const int64_t skipped = ((-high) % pass.gap + pass.gap) % pass.gap;  // Rows of the filter that are in the gap.
      tile.taps = (pass.filter_rows - skipped + pass.gap - 1) / pass.gap;
      tile.filter = filter + channel * pass.filter_rows * pass.in.channels * kColumns + skipped * tap_size;
      for (int64_t column = 0; column < columns; column += kernel.columns) {
        const int64_t x = std::min(column, columns - kernel.columns);
        tile.image = padded + (((high + skipped) / pass.gap - lowest) * width + x * pass.stride / pass.gap) * kLanes;
        tile.out = out + (y * columns + x) * channels + channel;
        kernel.compute(tile);
      }
    }
  }
}

// Returns the number of bands of at least 8 rows into which an image is divided, so that a padded band stays in a
// second-level cache.
int64_t BandsOf(int64_t rows, int64_t vectors, int64_t least) {
  constexpr int64_t kRowsOfBand = 8, kVectorsOfBand = 4 << 10;  // 256 KiB.
  return std::clamp<int64_t>(std::max(vectors / kVectorsOfBand, least), 1, std::max<int64_t>(rows / kRowsOfBand, 1));
}

bool Convolve(const Pass& pass, const float* images, const float* filter, float* out, const HostThreads& threads) {
  const Kernel* const kernel = KernelFor(pass.out.rows, pass.out.columns, pass.stride, pass.gap);
  const bool whole = pass.in.channels < kLanes || pass.in.channels % kLanes == 0;
  const bool aligned = pass.left % pass.gap == 0 && pass.out.columns % pass.gap == 0;
  if (kernel == nullptr || !whole || !aligned || pass.out.channels % kLanes != 0) return false;
  const auto packed = Scratch(pass.filter_rows * kColumns * pass.in.channels * pass.out.channels);
  PackFilter(filter, pass, packed.get());
  const int64_t rows = pass.out.rows;
  const int64_t width = std::max(pass.left / pass.gap + pass.in.columns,
                                 ((pass.out.columns - 1) * pass.stride + kColumns - 1) / pass.gap + 1);
  const int64_t bands =
      BandsOf(rows, pass.in.blocks() * pass.in.rows * width, kUnitsOfThread * threads.count() / pass.in.count);
  const int64_t padded_rows = (rows / bands + 1) * pass.stride + pass.filter_rows;  // The maximum over the bands.
  threads.Divide(pass.in.count * bands, [&](int64_t unit) {
    const auto padded = Scratch(pass.in.blocks() * padded_rows * width * kLanes);
    const int64_t image = unit / bands, band = unit % bands;
    ComputeBand(pass, *kernel, images + image * pass.in.image(), packed.get(), band * rows / bands,
                (band + 1) * rows / bands, width, padded.get(), out + image * pass.out.image());
  });
  return true;
}

// A part of the filter's gradient: one row of the filter, 8 input channels and 16 output channels. It is a sum over
// `rows` rows of the output.
struct GradientTile {
  const float* images;
  int64_t row, column;    // Distances between rows and columns of the images.
  const float* upstream;  // Padded.
  int64_t upstream_row;
  int64_t rows, columns;
  float* sums;  // [column][channel][16 channels]. The gradient is added to them.
  int64_t sums_column, sums_channel;
};

template <int S>
IPU_LANES __attribute__((noinline)) void AddGradient(const GradientTile& tile) {
  constexpr int kBefore = (kColumns - 1) / S;
  __m512 sums[kColumns][kDepth];
  IPU_UNROLL for (int k = 0; k < kColumns; ++k) {
    IPU_UNROLL for (int c = 0; c < kDepth; ++c) sums[k][c] = _mm512_setzero_ps();
  }
  for (int64_t row = 0; row < tile.rows; ++row) {
    const float *image = tile.images + row * tile.row, *upstream = tile.upstream + row * tile.upstream_row;
    for (int64_t column = 0; column < tile.columns; column += S, upstream += kLanes) {
      __m512 gradients[kBefore + 1];
      IPU_UNROLL for (int i = 0; i <= kBefore; ++i) gradients[i] = _mm512_loadu_ps(upstream + (kBefore - i) * kLanes);
      IPU_UNROLL for (int s = 0; s < S; ++s, image += tile.column) {
        IPU_UNROLL for (int c = 0; c < kDepth; ++c) {
          const __m512 value = _mm512_set1_ps(image[c]);
          IPU_UNROLL for (int k = s; k < kColumns; k += S) {
            sums[k][c] = _mm512_fmadd_ps(value, gradients[(k - s) / S], sums[k][c]);
          }
        }
      }
    }
  }
  IPU_UNROLL for (int k = 0; k < kColumns; ++k) {
    IPU_UNROLL for (int c = 0; c < kDepth; ++c) {
      float* const sum = tile.sums + k * tile.sums_column + c * tile.sums_channel;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), sums[k][c]));
    }
  }
}

// Adds the gradient of the rows from `top` to `bottom` of the upstream gradient of one image.
void AddBand(const Pass& pass, const float* image, const float* upstream, int64_t top, int64_t bottom, int64_t width,
             float* padded, float* sums) {
  const int64_t before = (kColumns - 1) / pass.stride, in = pass.in.channels, out = pass.out.channels;
  CopyPadded(upstream, pass.out, top, bottom - top, before - pass.left / pass.stride, width, padded);
  const int64_t image_row = pass.in.columns * in, upstream_row = width * kLanes;
  GradientTile tile{nullptr, image_row * pass.stride, in,      nullptr,  upstream_row,
                    0,       pass.in.columns,         nullptr, in * out, out};
  for (int64_t channel = 0; channel < out; channel += kLanes) {
    for (int64_t row = 0; row < pass.filter_rows; ++row) {
      const int64_t first = std::max(-Floor(row - pass.top, pass.stride), top);
      const int64_t last = std::min(Floor(pass.in.rows - 1 + pass.top - row, pass.stride) + 1, bottom);
      tile.rows = last - first;
      tile.upstream = padded + (channel / kLanes * (bottom - top) + first - top) * upstream_row;
      for (int64_t depth = 0; depth < in; depth += kDepth) {
        tile.images = image + (first * pass.stride + row - pass.top) * image_row + depth;
        tile.sums = sums + (row * kColumns * in + depth) * out + channel;
        (pass.stride == 2 ? AddGradient<2> : AddGradient<1>)(tile);
      }
    }
  }
}

bool FilterGradient(const Pass& pass, const float* images, const float* upstream, float* out,
                    const HostThreads& threads) {
  const int64_t shards = threads.count(), count = pass.in.count;
  const bool aligned = pass.left % pass.stride == 0 && pass.in.columns % pass.stride == 0;
  if (!aligned || pass.in.channels % kDepth != 0 || pass.out.channels % kLanes != 0 || count < shards) {
    return false;
  }
  const int64_t size = pass.filter_rows * kColumns * pass.in.channels * pass.out.channels;
  const int64_t before = (kColumns - 1) / pass.stride;
  const int64_t width =
      std::max(before - pass.left / pass.stride + pass.out.columns, pass.in.columns / pass.stride + before);
  const int64_t rows = pass.out.rows, bands = BandsOf(rows, pass.out.blocks() * rows * width, 1);
  const auto others = Scratch((shards - 1) * size);
  threads.Divide(shards, [&](int64_t shard) {
    const auto padded = Scratch(pass.out.blocks() * (rows / bands + 1) * width * kLanes);
    float* const sums = shard == 0 ? out : others.get() + (shard - 1) * size;
    std::fill_n(sums, size, 0.0f);
    for (int64_t i = shard * count / shards * bands; i < (shard + 1) * count / shards * bands; ++i) {
      const int64_t image = i / bands, band = i % bands;
      AddBand(pass, images + image * pass.in.image(), upstream + image * pass.out.image(), band * rows / bands,
              (band + 1) * rows / bands, width, padded.get(), sums);
    }
  });
  for (int64_t shard = 1; shard < shards; ++shard) {
    const float* const sums = others.get() + (shard - 1) * size;
    for (int64_t i = 0; i < size; ++i) out[i] += sums[i];
  }
  return true;
}

Images ImagesOf(const HostBuffer& buffer) {
  return {buffer.dimensions[0], buffer.dimensions[1], buffer.dimensions[2], buffer.dimensions[3]};
}

}  // namespace

std::unique_ptr<const DirectConvolution> DirectConvolution::Of(const tf::NodeDef& node) {
  DirectConvolution convolution;
  if (node.op() == "Conv2DBackpropInput") {
    convolution.role_ = Role::kOfInput;
  } else if (node.op() == "Conv2DBackpropFilter") {
    convolution.role_ = Role::kOfFilter;
  } else if (node.op() != "Conv2D") {
    return nullptr;
  }
  tf::DataType type = tf::DT_INVALID;
  std::string format, padding;
  std::vector<int64_t> strides, dilations;
  if (!__builtin_cpu_supports("avx512f") || !tf::TryGetNodeAttr(node, "T", &type) || type != tf::DT_FLOAT ||
      !tf::TryGetNodeAttr(node, "data_format", &format) || format != "NHWC" ||
      !tf::TryGetNodeAttr(node, "padding", &padding) || !tf::TryGetNodeAttr(node, "strides", &strides) ||
      !tf::TryGetNodeAttr(node, "dilations", &dilations) || dilations != std::vector<int64_t>(dilations.size(), 1) ||
      strides.size() != 4 || strides[1] != strides[2] || strides[1] > 2) {
    return nullptr;
  }
  convolution.stride_ = strides[1];
  convolution.same_ = padding == "SAME";
  tf::TryGetNodeAttr(node, "explicit_paddings", &convolution.paddings_);
  convolution.paddings_.resize(8);
  return std::make_unique<const DirectConvolution>(convolution);
}

bool DirectConvolution::Compute(absl::Span<const HostBuffer> arguments, absl::Span<const HostBuffer> results,
                                const HostThreads& threads) const {
  const HostBuffer& images = role_ == Role::kOfInput ? results[0] : arguments[0];
  const HostBuffer& filter = role_ == Role::kOfFilter ? results[0] : arguments[1];
  const HostBuffer& out = role_ == Role::kForward ? results[0] : arguments[2];
  if (images.dimensions.size() != 4 || filter.dimensions.size() != 4 || out.dimensions.size() != 4) return false;
  if (filter.dimensions[1] != kColumns || filter.dimensions[2] != images.dimensions[3]) return false;
  if (images.bytes == 0 || filter.bytes == 0 || out.bytes == 0 || filter.bytes > kMostFilter) return false;
  // A gradient of another shape is an error, which TensorFlow's kernel reports.
  if (out.dimensions[0] != images.dimensions[0] || out.dimensions[3] != filter.dimensions[3]) return false;
  Pass pass{ImagesOf(images), ImagesOf(out), filter.dimensions[0], stride_, 1, paddings_[2], paddings_[4], false};
  for (const int axis : {1, 2}) {
    const int64_t size = images.dimensions[axis], of_out = out.dimensions[axis], taps = filter.dimensions[axis - 1];
    const int64_t moves = same_ ? size - 1 : size + paddings_[2 * axis] + paddings_[2 * axis + 1] - taps;
    if (moves < 0 || of_out != moves / stride_ + 1) return false;
    if (same_) (axis == 1 ? pass.top : pass.left) = std::max<int64_t>((of_out - 1) * stride_ + taps - size, 0) / 2;
  }
  if (pass.left >= kColumns) return false;
  const auto* const x = static_cast<const float*>(images.data);
  const auto* const w = static_cast<const float*>(filter.data);
  const auto* const y = static_cast<const float*>(out.data);
  auto* const result = static_cast<float*>(results[0].data);
  if (role_ == Role::kForward) return Convolve(pass, x, w, result, threads);
  if (role_ == Role::kOfFilter) return FilterGradient(pass, x, y, result, threads);
  const Pass back{
      pass.out, pass.in, pass.filter_rows, 1, stride_, pass.filter_rows - 1 - pass.top, kColumns - 1 - pass.left, true};
  return Convolve(back, y, w, result, threads);
}

#else

std::unique_ptr<const DirectConvolution> DirectConvolution::Of(const tf::NodeDef&) { return nullptr; }

bool DirectConvolution::Compute(absl::Span<const HostBuffer>, absl::Span<const HostBuffer>, const HostThreads&) const {
  return false;
}

#endif

}  // namespace tensorflow_ipu
