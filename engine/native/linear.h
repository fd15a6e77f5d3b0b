// Packed linear layers, as the native block uses them: panels of output channels, one task at a
// time, with an epilogue of the caller's.
//
// Weights lie in panels of kPanel output channels, all of K behind one another: a
// task of some panels reads one stretch of memory from front to back. Sums run over k from 0 up, one
// accumulator per output, in blocks of kBlock, whatever the number of rows: the same row gives the
// same numbers alone and among many.
#pragma once

#include <stdint.h>

#include "octavo.h"
#include "vec.h"

namespace octavo {

// Input features between two flushes of integer sums, and of one activation scale.
// 256 * 127 * 32767 < 2^31: the sums cannot overflow.
constexpr int kBlock = 256;

// A panel is two vectors wide: with six rows that makes twelve sums, two weights, a broadcast
// activation and a product, which is all of AVX2's sixteen registers and not one more.
constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kLanes;

inline int panel_count(const OctavoLinear& linear) { return (linear.out + kPanel - 1) / kPanel; }
inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Rows of activations in the form that a weight dtype multiplies: float32 as they are, or for
/// int8 weights int16 with one scale for each row and block of kBlock features.
struct Rows {
    const float* floats;
    int64_t stride;
    const int16_t* ints;  // [rows, int_stride(in)], zero beyond `in`
    const float* scales;  // [rows, blocks(in)]
};

inline int64_t int_stride(int in) { return padded(in, 32); }
inline int blocks(int in) { return (in + kBlock - 1) / kBlock; }

/// Quantise one row of `in` floats to int16.
void quantise_row(const float* x, int in, int16_t* ints, float* scales);

/// out[r, 0 ..) = the sums of `panels` panels from `first` on, scales and bias applied, for the rows
/// row .. row + rows, up to the layer's last channel; adds to what is there if `add`.
void compute_panels(const OctavoLinear& linear, const Rows& x, int row, int rows, int first,
                    int panels, float* out, int64_t out_stride, bool add);

/// Weights of one output channel as float32: x[0 .. in).
void unpack_row(const OctavoLinear& linear, int64_t channel, float* x);

constexpr int kRowBlock = 96;  // rows of a task: their activations stay in L2

/// Tasks of a layer: blocks of rows times groups of panels.
struct Tiling {
    int row_block, panel_group, row_blocks, panel_groups;
    int64_t tasks() const { return (int64_t)row_blocks * panel_groups; }
};
Tiling tile(const OctavoLinear& linear, int rows, int panel_multiple);

}  // namespace octavo
