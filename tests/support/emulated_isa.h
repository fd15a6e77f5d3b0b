// AVX-512 and AMX in plain C++, put in front of the kernels' sources by `-include`
// (emulated_isa.py): the same kernels, chosen by the same macros, run on any processor with AVX2.
//
// Each operation is written down from Intel's description of it, lane by lane. The compiler's own
// names are covered by macros. Names that are missing here do not compile.
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __AVX512F__ 1
#define __AVX512VNNI__ 1

namespace emulated {

template <class T, int N>
struct Lanes {
    T lane[N];

    template <class Source>
    static Lanes of(const Source& source) {
        static_assert(sizeof source == sizeof(Lanes), "same size");
        Lanes lanes;
        memcpy(&lanes, &source, sizeof lanes);
        return lanes;
    }
    template <class Target>
    Target as() const {
        static_assert(sizeof(Target) == sizeof(Lanes), "same size");
        Target target;
        memcpy(&target, this, sizeof target);
        return target;
    }
};

/// Lane by lane: to[i] = f(from[i]).
template <class To, class Result, class From, class Source, class F>
inline Result each(const Source& source, const F& f) {
    constexpr int kLanes = sizeof(Source) / sizeof(From);
    const auto from = Lanes<From, kLanes>::of(source);
    Lanes<To, kLanes> to;
    for (int i = 0; i < kLanes; ++i) to.lane[i] = (To)f(from.lane[i]);
    return to.template as<Result>();
}

inline __m512 set1_ps(float x) {
    return each<float, __m512, float>(__m512{}, [x](float) { return x; });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    const auto x = Lanes<float, 16>::of(a), y = Lanes<float, 16>::of(b);
    auto z = Lanes<float, 16>::of(c);
    for (int i = 0; i < 16; ++i) z.lane[i] = __builtin_fmaf(x.lane[i], y.lane[i], z.lane[i]);
    return z.as<__m512>();
}
inline __m512i cvtepi8_epi16(__m256i a) {
    return each<int16_t, __m512i, int8_t>(a, [](int8_t x) { return x; });
}
inline __m512i cvtepi8_epi32(__m128i a) {
    return each<int32_t, __m512i, int8_t>(a, [](int8_t x) { return x; });
}
inline __m512i cvtepu16_epi32(__m256i a) {
    return each<uint32_t, __m512i, uint16_t>(a, [](uint16_t x) { return x; });
}
inline __m512 cvtepi32_ps(__m512i a) {
    return each<float, __m512, int32_t>(a, [](int32_t x) { return (float)x; });
}
inline __m512i slli_epi32(__m512i a, unsigned n) {
    return each<uint32_t, __m512i, uint32_t>(a, [n](uint32_t x) { return n > 31 ? 0 : x << n; });
}
inline __m512i dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
    const auto x = Lanes<int16_t, 32>::of(a), y = Lanes<int16_t, 32>::of(b);
    auto z = Lanes<uint32_t, 16>::of(sum);
    for (int i = 0; i < 16; ++i)
        z.lane[i] += (uint32_t)(x.lane[2 * i] * y.lane[2 * i]) +
                     (uint32_t)(x.lane[2 * i + 1] * y.lane[2 * i + 1]);
    return z.as<__m512i>();
}
inline uint32_t test_epi32_mask(__m512i a, __m512i b) {
    const auto x = Lanes<int32_t, 16>::of(a), y = Lanes<int32_t, 16>::of(b);
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) mask |= (uint32_t)((x.lane[i] & y.lane[i]) != 0) << i;
    return mask;
}
inline __m256 castps512_ps256(__m512 a) {
    __m256 low;
    memcpy(&low, &a, sizeof low);
    return low;
}
inline __m256d extractf64x4_pd(__m512d a, int half) {
    __m256d result;
    memcpy(&result, (const char*)&a + half * sizeof result, sizeof result);
    return result;
}

// ---- AMX ---------------------------------------------------------------------------------------

#if defined(EMULATED_AMX)
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#define __AMX_TILE__ 1

struct TileData {
    int rows, bytes;
    alignas(64) uint8_t data[16][64];
};
inline thread_local TileData tiles[8];
inline thread_local bool configured = false;

inline void need(bool holds) {  // what the processor answers with a fault
    if (!holds) abort();
}
inline void loadconfig(const void* memory) {
    const uint8_t* config = (const uint8_t*)memory;
    need(config[0] == 1);
    for (int i = 1; i < 16; ++i) need(config[i] == 0);
    for (int t = 0; t < 16; ++t) {
        uint16_t bytes;
        memcpy(&bytes, config + 16 + 2 * t, sizeof bytes);
        const int rows = config[48 + t];
        need(bytes <= 64 && rows <= 16 && (bytes == 0) == (rows == 0) && (t < 8 || rows == 0));
        if (t < 8) tiles[t] = TileData{rows, bytes, {}};
    }
    configured = true;
}
inline void release() { configured = false; }
inline void zero(int t) {
    need(configured);
    memset(tiles[t].data, 0, sizeof tiles[t].data);
}
inline void load(int t, const void* memory, long stride) {
    need(configured && tiles[t].rows > 0);
    zero(t);
    for (int r = 0; r < tiles[t].rows; ++r)
        memcpy(tiles[t].data[r], (const char*)memory + r * stride, tiles[t].bytes);
}
inline void store(int t, void* memory, long stride) {
    need(configured && tiles[t].rows > 0);
    for (int r = 0; r < tiles[t].rows; ++r)
        memcpy((char*)memory + r * stride, tiles[t].data[r], tiles[t].bytes);
}

/// sums[m][n] += f over the 32-bit lanes k of row m of a and of column n of b.
template <class Sum, class F>
inline void multiply(int sums, int a, int b, const F& f) {
    need(configured && sums != a && sums != b && a != b);
    need(tiles[sums].rows == tiles[a].rows && tiles[sums].bytes == tiles[b].bytes);
    need(tiles[a].bytes == 4 * tiles[b].rows);
    for (int m = 0; m < tiles[sums].rows; ++m)
        for (int n = 0; n < tiles[sums].bytes / 4; ++n) {
            Sum sum;
            memcpy(&sum, tiles[sums].data[m] + 4 * n, sizeof sum);
            sum = f(sum, tiles[a].bytes / 4, tiles[a].data[m], n);
            memcpy(tiles[sums].data[m] + 4 * n, &sum, sizeof sum);
        }
}
template <class A>
inline void dpb(int sums, int a, int b) {
    multiply<uint32_t>(sums, a, b, [&](uint32_t sum, int lanes, const uint8_t* row, int n) {
        for (int k = 0; k < lanes; ++k)
            for (int i = 0; i < 4; ++i)
                sum += (uint32_t)((A)row[4 * k + i] * (int8_t)tiles[b].data[k][4 * n + i]);
        return sum;
    });
}
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float half_at(const uint8_t* memory) {
    uint32_t bits = (uint32_t)(memory[0] | memory[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}
inline void dpbf16ps(int sums, int a, int b) {
    multiply<float>(sums, a, b, [&](float sum, int lanes, const uint8_t* row, int n) {
        float even = 0.0f, odd = 0.0f;  // summed apart, then joined
        for (int k = 0; k < lanes; ++k) {
            const uint8_t* x = row + 4 * k;
            const uint8_t* w = tiles[b].data[k] + 4 * n;
            even = flushed(__builtin_fmaf(half_at(x), half_at(w), even));
            odd = flushed(__builtin_fmaf(half_at(x + 2), half_at(w + 2), odd));
        }
        return flushed(flushed(sum) + flushed(even + odd));
    });
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::loadconfig
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbssd emulated::dpb<int8_t>
#define _tile_dpbusd emulated::dpb<uint8_t>
#define _tile_dpbf16ps emulated::dpbf16ps
#endif

}  // namespace emulated

#define _mm512_set1_ps emulated::set1_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_cvtepi8_epi16 emulated::cvtepi8_epi16
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#define _mm512_test_epi32_mask emulated::test_epi32_mask
#define _mm512_castps512_ps256 emulated::castps512_ps256
#undef _mm512_slli_epi32
#undef _mm512_extractf64x4_pd
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_extractf64x4_pd emulated::extractf64x4_pd
