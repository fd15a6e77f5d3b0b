// What a tile fetches while it computes: its share of the weights that are wanted next, so that
// memory is at work during all tiles over a block of weights and not in the first one alone.
#pragma once

#include <stdint.h>

namespace octavo {

constexpr int kAhead = 2048;  // bytes of weights fetched before their use by a single tile

struct Fetch {
    const char* at;
    int64_t step;  // bytes for each iteration of the tile

    void next() {
        __builtin_prefetch(at, 0, 3);
        at += step;
    }
};

/// The share of tile `tile` of `tiles` over a block of `iterations` * `bytes` of weights.
inline Fetch share(const void* block, int iterations, int bytes, int tile, int tiles) {
    if (tiles == 1) return {(const char*)block + kAhead, bytes};
    const int64_t step = (bytes + tiles - 1) / tiles;
    return {(const char*)block + (int64_t)iterations * (bytes + tile * step), step};
}

}  // namespace octavo
