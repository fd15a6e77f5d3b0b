// One vector type for every instruction set: float32 lanes as wide as the target's registers.
//
// GCC's vector extensions carry arithmetic and comparisons; the few operations whose instruction
// matters (fma, conversions, reductions) are named here once, so that kernels hold no intrinsics
// of one machine. A comparison gives a mask of 0 and -1 as int32 lanes; `select` picks by it, which
// is how unwritten memory is masked (NaN times zero is NaN). Compile without -ffast-math.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace octavo {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UintVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));
typedef int8_t ByteVec __attribute__((vector_size(kLanes)));

typedef uint16_t bf16;  // the upper half of a float32

inline Vec broadcast(float x) {  // not Vec{} + x, which would be an addition
#if defined(__AVX512F__)
    return (Vec)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (Vec)_mm256_set1_ps(x);
#else
    return Vec{x, x, x, x};
#endif
}
inline IntVec broadcast_int(int32_t x) { return IntVec{} + x; }

template <class To, class From>
inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

inline Vec load(const float* p) {
    Vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, Vec v) { memcpy(p, &v, sizeof v); }

/// The first n lanes of p (0 <= n <= kLanes), zero beyond; nothing beyond them is read.
inline Vec load_some(const float* p, int n) {
    float lanes[kLanes] = {};
    memcpy(lanes, p, sizeof(float) * n);
    return load(lanes);
}
inline void store_some(float* p, Vec v, int n) {
    float lanes[kLanes];
    store(lanes, v);
    memcpy(p, lanes, sizeof(float) * n);
}

inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

inline Vec select(IntVec mask, Vec yes, Vec no) { return mask ? yes : no; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }  // b where either is NaN
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec abs(Vec a) { return bits<Vec>(bits<UintVec>(a) & 0x7fffffffu); }

// bfloat16 ------------------------------------------------------------------------------------

inline float widen(bf16 h) { return bits<float>((uint32_t)h << 16); }

inline bf16 narrow(float x) {  // to nearest, ties to even; a NaN stays one
    uint32_t u = bits<uint32_t>(x);
    if (x != x) return (bf16)(u >> 16) | 0x40;
    return (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline Vec load(const bf16* p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
    return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    HalfVec h;
    memcpy(&h, p, sizeof h);
    return bits<Vec>(__builtin_convertvector(h, UintVec) << 16);
#endif
}

inline void store(bf16* p, Vec v) {
    UintVec u = bits<UintVec>(v);
    UintVec rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    UintVec nan = (u >> 16) | 0x40u;
    HalfVec h = __builtin_convertvector((v == v) ? rounded : nan, HalfVec);
    memcpy(p, &h, sizeof h);
}

inline Vec load(const int8_t* p) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    ByteVec b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(__builtin_convertvector(b, IntVec), Vec);
#endif
}

// reductions: always in the same order ------------------------------------------------------

inline float sum(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int step = kLanes / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
    return lanes[0];
}

inline float largest(Vec v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int step = kLanes / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i)
            lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
    return lanes[0];
}

// exp -----------------------------------------------------------------------------------------

/// e^x within 2 units in the last place; 0 below -87.3 (and for -inf), inf above 88.7, NaN for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 split in two so that r is exact, and e^r by the
/// polynomial of Cephes' expf (Moshier).
inline Vec exp(Vec x) {
    const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    Vec clamped = x < -88.0f ? broadcast(-88.0f) : x;
    clamped = clamped > 89.0f ? broadcast(89.0f) : clamped;
    Vec shifted = fma(clamped, broadcast(1.44269504088896341f), magic);
    Vec n = shifted - magic;
    Vec r = fma(n, broadcast(-0.693359375f), clamped);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p * r, r, r) + 1.0f;
    // 2^n in two factors: n reaches 128, whose exponent a float does not have.
    IntVec whole = bits<IntVec>(shifted) - bits<IntVec>(magic);
    IntVec half = whole >> 1;
    Vec first = bits<Vec>((half + 127) << 23);
    Vec second = bits<Vec>((whole - half + 127) << 23);
    Vec result = p * first * second;
    return x < -87.3f ? broadcast(0.0f) : result;
}

/// e^x for x <= 0, 0 below -87.3, NaN for NaN: `exp` without what only larger numbers need.
inline Vec exp_down(Vec x) {
    const Vec lowest = broadcast(-87.3f);
    const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    Vec clamped = x < lowest ? lowest : x;
    Vec shifted = fma(clamped, broadcast(1.44269504088896341f), magic);
    Vec n = shifted - magic;
    Vec r = fma(n, broadcast(-0.693359375f), clamped);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p * r, r, r) + 1.0f;
    // 2^n is added to the exponent, in place of a product.
    Vec result = bits<Vec>(bits<IntVec>(p) + (bits<IntVec>(shifted) << 23));
    return x < lowest ? Vec{} : (p == p ? result : p);
}

/// x / (1 + e^-x)
inline Vec silu(Vec x) { return x / (exp(-x) + 1.0f); }

}  // namespace octavo
