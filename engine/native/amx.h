// Products of int8 and bfloat16 weights with AMX tiles: included by linear.cpp alone, where the
// compiler has them.
//
// Up to sixteen rows meet one panel of 32 channels, both terms of the activations each with both
// halves of the panel: four tiles of sums, which need four loads for four products. A tile's rows
// do not mix, and any number of rows takes this path, so a row gives the same bits alone and among
// many. int8: x = 256 high + low, so that sums are exact, and equal those of the other instruction
// sets. bfloat16: x = high + low to 2^-17 of x, products summed by the tiles in float32.
#pragma once

#include <algorithm>

#include "fetch.h"
#include "linear.h"

namespace octavo {

constexpr int kTile = 16;                        // rows of a tile, and 32-bit lanes of each
constexpr int kStep = 64;                        // bytes of a row that one product takes
constexpr int kStepWeights = 2 * kTile * kStep;  // bytes of the panel that it meets
constexpr int kTileAhead = 4 * kStepWeights;     // fetched before their use by a single tile

/// The shapes of the tiles: sums 0 to 3 and activations 4 and 5 of `rows` rows, weights 6 and 7.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    explicit TileShapes(int activation_rows) {
        for (int t = 0; t < 8; ++t) {
            bytes[t] = kStep;
            rows[t] = (uint8_t)(t < 6 ? activation_rows : kTile);
        }
    }
};

/// The calling thread's tiles while this lives. Torch's own kernels shape them otherwise.
class TilesInUse {
  public:
    explicit TilesInUse(int rows) {
        const TileShapes shapes(rows);
        // GCC's intrinsic claims to read but the first eight bytes: have all of them written.
        asm volatile("" : : "r"(&shapes) : "memory");
        _tile_loadconfig(&shapes);
    }
    ~TilesInUse() { _tile_release(); }
    TilesInUse(const TilesInUse&) = delete;
    TilesInUse& operator=(const TilesInUse&) = delete;
};

/// What rows are multiplied with: `steps` steps of a panel.
struct TileBlock {
    const char* weights;
    int steps;
    const char* rows;  // prepared, from the block's first feature on
    int64_t stride;    // bytes between rows, and from a row's high to its low terms
    int64_t low;
    const float* scales;  // of each row, int8 only
    int scale_stride;
    bool fresh;  // the sums begin here
};

/// Sums of high and of low terms, each for both vectors of a panel.
typedef float TileSums[2][kVectors][kTile][kTile];

template <class Weight>
void multiply_tile(const TileBlock& block, int first, Fetch fetch, int fetches, TileSums& sums) {
    const char* high = block.rows + first * block.stride;
    const char* low = high + block.low;
    const char* w = block.weights;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int s = 0; s < block.steps; ++s, w += kStepWeights, high += kStep, low += kStep) {
        for (int i = 0; i < fetches; ++i) fetch.next();
        _tile_loadd(6, w, kStep);
        _tile_loadd(7, w + kTile * kStep, kStep);
        _tile_loadd(4, high, block.stride);
        _tile_loadd(5, low, block.stride);
        if constexpr (sizeof(Weight) == 1) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0][0], kStep);
    _tile_stored(1, sums[0][1], kStep);
    _tile_stored(2, sums[1][0], kStep);
    _tile_stored(3, sums[1][1], kStep);
}

/// Adds the sums of a tile's rows from `done` on to those of the blocks before.
template <class Weight>
void flush_tile(const TileBlock& block, int first, int done, int rows, const TileSums& sums,
                float* out) {
    for (int r = done; r < rows; ++r) {
        float* at = out + (first + r) * kPanel;
        for (int v = 0; v < kVectors; ++v, at += kLanes) {
            const Vec high = load(sums[0][v][r]), low = load(sums[1][v][r]);
            const Vec before = block.fresh ? Vec{} : load(at);
            if constexpr (sizeof(Weight) == 1) {
                const IntVec whole = (bits<IntVec>(high) << 8) + bits<IntVec>(low);
                const Vec scale = broadcast(block.scales[(first + r) * block.scale_stride]);
                store(at, fma(__builtin_convertvector(whole, Vec), scale, before));
            } else {
                store(at, before + (high + low));
            }
        }
    }
}

/// Tiles of equal height; the last one begins early where rows are left over, and what it computes
/// again is not added again.
inline int tile_height(int rows) {
    const int tiles = (rows + kTile - 1) / kTile;
    return (rows + tiles - 1) / tiles;
}

/// out [rows, kPanel] += the rows times a block, the thread's tiles shaped for tile_height(rows).
template <class Weight>
void multiply_tiles(const TileBlock& block, int rows, float* out) {
    alignas(64) TileSums sums;
    const int height = tile_height(rows), tiles = (rows + height - 1) / height;
    const int fetches = (kStepWeights / 64 + tiles - 1) / tiles;
    for (int t = 0; t < tiles; ++t) {
        const int first = std::min(t * height, rows - height);
        const char* next = block.weights + (tiles == 1 ? kTileAhead : block.steps * kStepWeights);
        const Fetch fetch{next + (int64_t)t * block.steps * fetches * 64, 64};
        multiply_tile<Weight>(block, first, fetch, fetches, sums);
        flush_tile<Weight>(block, first, t * height - first, height, sums, out);
    }
}

}  // namespace octavo
