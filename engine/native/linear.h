// Packed linear layers, as the native block uses them: panels of output channels, one task at a
// time, with an epilogue of the caller's.
//
// Weights lie in panels of kPanel output channels, all of K behind one another: a task of some
// panels reads one stretch of memory from front to back. Sums run over k from 0 up, in blocks of
// kBlock, whatever the number of rows: the same row gives the same numbers alone and among many.
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

// Whether int8 and bfloat16 weights are multiplied by AMX (amx.h).
#if defined(__AMX_INT8__)
constexpr bool kAmx = true;
#else
constexpr bool kAmx = false;
#endif

inline int panel_count(const OctavoLinear& linear) { return (linear.out + kPanel - 1) / kPanel; }
inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// ---- packed weights (packed.cpp) ---------------------------------------------------------------

/// Bytes of one panel: all of K for kPanel channels.
int64_t panel_bytes(int in, int dtype);

/// Weights of one output channel as float32: x[0 .. in).
void unpack_row(const OctavoLinear& linear, int64_t channel, float* x);

// ---- activations (rows.cpp) --------------------------------------------------------------------

/// Rows of activations in the form that a weight dtype multiplies: float32, or prepared.
///
/// For int8 weights a prepared row holds int16 numbers with one scale for each block of kBlock
/// features. AMX has them as two bytes, all high (signed) ones and then all low (unsigned) ones;
/// and for bfloat16 weights the row as two bfloat16 terms, all high ones and then all low ones.
struct Rows {
    const float* floats;
    int64_t stride;
    const int16_t* ints;  // [rows, int_stride(in)], zero beyond `in`
    const float* scales;  // [rows, blocks(in)]
};

inline bool wants_prepared(int dtype) {
    return dtype == OCTAVO_I8 || (kAmx && dtype == OCTAVO_BF16);
}

/// Elements of a row, or of one of its two terms: whole steps of AMX, of 64 bytes or more.
inline int64_t term_stride(int in) { return padded(in, 64); }

/// With AMX room for two terms of 16 bits, and 64 bytes more: rows a multiple of 4 KiB apart would
/// all share the same few lines of the first cache.
inline int64_t int_stride(int in) { return kAmx ? 2 * term_stride(in) + 32 : term_stride(in); }
inline int blocks(int in) { return (in + kBlock - 1) / kBlock; }

/// Prepare one row of `in` floats for weights of `dtype`, one of those that want it.
void prepare_row(int dtype, const float* x, int in, int16_t* ints, float* scales);

// ---- products (linear.cpp) ---------------------------------------------------------------------

/// out[r, 0 ..) = the sums of `panels` panels from `first` on, scales and bias applied, for the
/// rows row .. row + rows, up to the layer's last channel; adds to what is there if `add`.
void compute_panels(const OctavoLinear& linear, const Rows& x, int row, int rows, int first,
                    int panels, float* out, int64_t out_stride, bool add);

constexpr int kRowBlock = 96;  // rows of a task: their activations stay in L2

/// Tasks of a layer: blocks of rows times groups of panels.
struct Tiling {
    int row_block, panel_group, row_blocks, panel_groups;
    int64_t tasks() const { return (int64_t)row_blocks * panel_groups; }
};
Tiling tile(const OctavoLinear& linear, int rows, int panel_multiple);

}  // namespace octavo
