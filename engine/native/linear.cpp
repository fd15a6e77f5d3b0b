// Linear layers over packed weights: float32, bfloat16 and int8, any shape, any number of rows.
//
// float32 and bfloat16 weights are multiplied as float32 (a bfloat16 is widened by a shift). int8
// weights meet activations of 16 bits: products of int16 pairs are summed exactly in int32 and
// flushed to float32 once per block, at twice the rate of float32 arithmetic on AVX2.
#include "linear.h"

#include <math.h>

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace octavo {
namespace {

constexpr int kTileRows = kLanes == 8 ? 6 : 12;  // 16 registers, or 32

constexpr int64_t kTaskBytes = 32768;  // weights of a task, at least
constexpr int kMinTasks = 8;           // so that a slowed core leaves work to the others

constexpr int kAhead = 2048;           // bytes of weights fetched before their use by a single tile

constexpr int64_t kSmall = 1 << 17;    // products that one thread has done before another is awake

/// What a tile fetches while it computes: its share of the weights that are wanted next, so that
/// memory is at work during all tiles over a block of weights and not in the first one alone.
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

// Unrolled whole, so that sums stay in registers.
#define ALL_OF(R) _Pragma("GCC unroll 16") for (int i = 0; i < (R); ++i)

// ---- float32 and bfloat16 weights --------------------------------------------------------------

/// The two vectors of weights of one k.
inline void load_weights(const float* w, Vec (&v)[kVectors]) {
    v[0] = load(w);
    v[1] = load(w + kLanes);
}

/// Two channels share a 32-bit lane, so that widening takes one instruction a vector.
inline void load_weights(const uint32_t* w, Vec (&v)[kVectors]) {
    UintVec both;
    memcpy(&both, w, sizeof both);
    v[0] = bits<Vec>(both << 16);
    v[1] = bits<Vec>(both & 0xffff0000u);
}

/// One tile of sums over `n` values of k: R rows times one panel.
template <int R, class W>
void float_tile(const W* w, int per_k, Fetch fetch, const float* x, int64_t stride, int n,
                float* out, int64_t out_stride, bool fresh) {
    Vec acc[R][kVectors];
    ALL_OF(R) {
        acc[i][0] = fresh ? Vec{} : load(out + i * out_stride);
        acc[i][1] = fresh ? Vec{} : load(out + i * out_stride + kLanes);
    }
    for (int k = 0; k < n; ++k, w += per_k) {
        Vec weights[kVectors];
        load_weights(w, weights);
        fetch.next();
        ALL_OF(R) {
            Vec a = broadcast(x[i * stride + k]);
            acc[i][0] = fma(weights[0], a, acc[i][0]);
            acc[i][1] = fma(weights[1], a, acc[i][1]);
        }
    }
    ALL_OF(R) {
        store(out + i * out_stride, acc[i][0]);
        store(out + i * out_stride + kLanes, acc[i][1]);
    }
}

/// The tiles over a block of `n` values of k, `tile` of them done.
template <int R, class W>
void float_rows(int rows, const W* w, int per_k, const float* x, int64_t stride, int n, float* out,
                int64_t out_stride, bool fresh, int tile, int tiles) {
    for (; rows >= R; rows -= R, ++tile) {
        const Fetch fetch = share(w, n, per_k * (int)sizeof(W), tile, tiles);
        float_tile<R>(w, per_k, fetch, x, stride, n, out, out_stride, fresh);
        x += R * stride, out += R * out_stride;
    }
    if constexpr (R > 1) {
        if (rows > 0)
            float_rows<R - 1>(rows, w, per_k, x, stride, n, out, out_stride, fresh, tile, tiles);
    }
}

// ---- int8 weights ------------------------------------------------------------------------------

typedef int16_t ShortVec __attribute__((vector_size(kLanes * 4)));

/// 2 * kLanes int8 weights as int16.
inline ShortVec load_bytes(const int8_t* w) {
#if defined(__AVX512F__)
    return (ShortVec)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)w));
#elif defined(__AVX2__)
    return (ShortVec)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)w));
#else
    typedef int8_t Bytes __attribute__((vector_size(kLanes * 2)));
    Bytes b;
    memcpy(&b, w, sizeof b);
    return __builtin_convertvector(b, ShortVec);
#endif
}

/// sum[i] + a[2i] b[2i] + a[2i + 1] b[2i + 1]
inline IntVec add_pairs(IntVec sum, ShortVec a, ShortVec b) {
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sum + (IntVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
    return sum + (IntVec)vpaddq_s32(low, vmull_high_s16(x, y));
#else
    IntVec x = bits<IntVec>(a), y = bits<IntVec>(b);
    return sum + (x >> 16) * (y >> 16) + ((x << 16) >> 16) * ((y << 16) >> 16);
#endif
}

template <int R>
void byte_tile(const int8_t* w, Fetch fetch, const int16_t* x, int64_t stride, const float* scales,
               int scale_stride, int pairs, float* out, int64_t out_stride, bool fresh) {
    IntVec acc[R][kVectors];
    ALL_OF(R) acc[i][0] = acc[i][1] = IntVec{};
    for (int k = 0; k < pairs; ++k, w += 2 * kPanel) {
        const ShortVec first = load_bytes(w), second = load_bytes(w + kPanel);
        fetch.next();
        ALL_OF(R) {
            int32_t pair;
            memcpy(&pair, x + i * stride + 2 * k, sizeof pair);
            const ShortVec a = bits<ShortVec>(broadcast_int(pair));
            acc[i][0] = add_pairs(acc[i][0], first, a);
            acc[i][1] = add_pairs(acc[i][1], second, a);
        }
    }
    ALL_OF(R) {
        const Vec scale = broadcast(scales[i * scale_stride]);
        float* at = out + i * out_stride;
        Vec first = fresh ? Vec{} : load(at), second = fresh ? Vec{} : load(at + kLanes);
        store(at, fma(__builtin_convertvector(acc[i][0], Vec), scale, first));
        store(at + kLanes, fma(__builtin_convertvector(acc[i][1], Vec), scale, second));
    }
}

template <int R>
void byte_rows(int rows, const int8_t* w, const int16_t* x, int64_t stride, const float* scales,
               int scale_stride, int pairs, float* out, int64_t out_stride, bool fresh, int tile,
               int tiles) {
    for (; rows >= R; rows -= R, ++tile) {
        const Fetch fetch = share(w, pairs, 2 * kPanel, tile, tiles);
        byte_tile<R>(w, fetch, x, stride, scales, scale_stride, pairs, out, out_stride, fresh);
        x += R * stride, scales += R * scale_stride, out += R * out_stride;
    }
    if constexpr (R > 1) {
        if (rows > 0)
            byte_rows<R - 1>(rows, w, x, stride, scales, scale_stride, pairs, out, out_stride,
                             fresh, tile, tiles);
    }
}

// ---- packed layout -----------------------------------------------------------------------------

/// Bytes of one panel: all of K for kPanel channels.
int64_t panel_bytes(int in, int dtype) {
    int64_t width = kPanel;
    switch (dtype) {
        case OCTAVO_I8: return padded(in, 2) * width;
        case OCTAVO_BF16: return 2 * in * width;
        default: return 4 * in * width;
    }
}

/// Where weight (channel, k) of a panel lies, counted in elements.
int64_t position(int channel, int k, int dtype) {
    int64_t width = kPanel;
    switch (dtype) {
        case OCTAVO_I8: return (k / 2 * width + channel) * 2 + k % 2;
        case OCTAVO_BF16: {
            int pair = channel / (2 * kLanes), in_pair = channel % (2 * kLanes);
            return k * width + pair * 2 * kLanes + in_pair % kLanes * 2 + in_pair / kLanes;
        }
        default: return k * width + channel;
    }
}

/// y = sums * scales + bias, + y if `add`, for the `n` channels of one vector.
template <class Load, class Store>
inline void finish_vector(int rows, const float* sums, int64_t stride, const float* scales,
                          const float* bias, float* y, int64_t y_stride, bool add,
                          const Load& load_y, const Store& store_y) {
    const Vec scale = scales ? load_y(scales) : broadcast(1.0f);
    const Vec shift = bias ? load_y(bias) : Vec{};
    for (int r = 0; r < rows; ++r, sums += stride, y += y_stride) {
        Vec v = load(sums);
        if (scales) v = v * scale;
        if (bias) v = v + shift;
        if (add) v = v + load_y(y);
        store_y(y, v);
    }
}

void finish(const OctavoLinear& linear, int first_channel, int width, int rows, const float* sums,
            int64_t stride, float* out, int64_t out_stride, bool add) {
    const int wanted = std::min(width, linear.out - first_channel);
    for (int c = 0; c < wanted; c += kLanes) {
        const float* scales = linear.scales ? linear.scales + first_channel + c : nullptr;
        const float* bias = linear.bias ? linear.bias + first_channel + c : nullptr;
        const int n = std::min(kLanes, wanted - c);
        if (n == kLanes) {  // memory is touched a whole vector at a time
            finish_vector(rows, sums + c, stride, scales, bias, out + c, out_stride, add,
                          [](const float* p) { return load(p); },
                          [](float* p, Vec v) { store(p, v); });
        } else {
            finish_vector(rows, sums + c, stride, scales, bias, out + c, out_stride, add,
                          [n](const float* p) { return load_some(p, n); },
                          [n](float* p, Vec v) { store_some(p, v, n); });
        }
    }
}

/// Round to the nearest integer, ties to even, as lrintf does; |v| < 2^22.
inline void store_rounded(int16_t* p, Vec v) {
    const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23
    IntVec whole = bits<IntVec>(v + magic) - bits<IntVec>(magic);
    typedef int16_t Half __attribute__((vector_size(kLanes * 2)));
    Half h = __builtin_convertvector(whole, Half);
    memcpy(p, &h, sizeof h);
}

}  // namespace

void quantise_row(const float* x, int in, int16_t* ints, float* scales) {
    int64_t whole = int_stride(in);
    for (int start = 0; start < in; start += kBlock) {
        int n = std::min(kBlock, in - start);
        Vec top{}, poison{};
        int k = 0;
        for (; k + kLanes <= n; k += kLanes) {
            Vec v = load(x + start + k);
            top = max(abs(v), top);
            poison = fma(v, broadcast(0.0f), poison);
        }
        if (k < n) {
            Vec v = load_some(x + start + k, n - k);
            top = max(abs(v), top);
            poison = fma(v, broadcast(0.0f), poison);
        }
        const float peak = largest(top);
        // Where a number is not finite the scale is NaN, and so is all that the row gives.
        const float scale = peak / 32767.0f + sum(poison);
        const float inverse = peak > 0 && scale == scale ? 32767.0f / peak : 0.0f;
        *scales++ = scale;
        for (k = 0; k + kLanes <= n; k += kLanes)
            store_rounded(ints + start + k, load(x + start + k) * inverse);
        for (; k < n; ++k)
            ints[start + k] = inverse > 0 ? (int16_t)lrintf(x[start + k] * inverse) : 0;
    }
    for (int64_t k = in; k < whole; ++k) ints[k] = 0;
}

void compute_panels(const OctavoLinear& linear, const Rows& x, int row, int rows, int first,
                    int panels, float* out, int64_t out_stride, bool add) {
    const int width = kPanel, in = linear.in;
    const int64_t bytes = panel_bytes(in, linear.dtype);
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    alignas(64) float sums[kRowBlock * kPanel];
    for (int p = 0; p < panels; ++p) {
        const char* w = (const char*)linear.weights + (first + p) * bytes * linear.panel_step;
        for (int k = 0, b = 0; k < in; k += kBlock, ++b) {
            const int n = std::min(kBlock, in - k);
            if (linear.dtype == OCTAVO_I8) {
                byte_rows<kTileRows>(rows, (const int8_t*)w + (int64_t)k * width,
                                     x.ints + row * int_stride(in) + k, int_stride(in),
                                     x.scales + row * blocks(in) + b, blocks(in), (n + 1) / 2, sums,
                                     width, k == 0, 0, tiles);
            } else if (linear.dtype == OCTAVO_BF16) {
                float_rows<kTileRows>(rows, (const uint32_t*)w + (int64_t)k * width / 2, width / 2,
                                       x.floats + row * x.stride + k, x.stride, n, sums, width,
                                       k == 0, 0, tiles);
            } else {
                float_rows<kTileRows>(rows, (const float*)w + (int64_t)k * width, width,
                                       x.floats + row * x.stride + k, x.stride, n, sums, width,
                                       k == 0, 0, tiles);
            }
        }
        finish(linear, (first + p) * width, width, rows, sums, width, out + p * width, out_stride,
               add);
    }
}

void unpack_row(const OctavoLinear& linear, int64_t channel, float* x) {
    const int dtype = linear.dtype, in_panel = (int)(channel % kPanel);
    const char* panel = (const char*)linear.weights +
                        channel / kPanel * panel_bytes(linear.in, dtype) * linear.panel_step;
    for (int k = 0; k < linear.in; ++k) {
        const int64_t at = position(in_panel, k, dtype);
        switch (dtype) {
            case OCTAVO_I8: x[k] = ((const int8_t*)panel)[at] * linear.scales[channel]; break;
            case OCTAVO_BF16: x[k] = widen(((const bf16*)panel)[at]); break;
            default: x[k] = ((const float*)panel)[at];
        }
    }
}

Tiling tile(const OctavoLinear& linear, int rows, int panel_multiple) {
    Tiling t;
    rows = std::max(rows, 1);  // a step may want no logits
    t.row_blocks = (rows + kRowBlock - 1) / kRowBlock;
    t.row_block = (rows + t.row_blocks - 1) / t.row_blocks;
    int panels = panel_count(linear);
    int64_t bytes = panel_bytes(linear.in, linear.dtype);
    int64_t group = std::max<int64_t>(1, kTaskBytes / bytes);
    group = std::min<int64_t>(group, std::max(1, panels * t.row_blocks / kMinTasks));
    if ((int64_t)rows * linear.in * linear.out < kSmall) group = panels;
    t.panel_group = (int)padded(group, panel_multiple);
    t.panel_groups = (panels + t.panel_group - 1) / t.panel_group;
    return t;
}

}  // namespace octavo

using namespace octavo;

int64_t octavo_packed_bytes(int32_t in, int32_t out, int32_t dtype) {
    int64_t panels = (out + kPanel - 1) / kPanel;
    return panels * panel_bytes(in, dtype);
}

void octavo_pack(const float* weights, int32_t in, int32_t out, int32_t dtype, int32_t panel_step,
                 void* packed, float* scales) {
    const int width = kPanel;
    const int64_t bytes = panel_bytes(in, dtype);
    parallel_for((out + width - 1) / width, [&](int64_t p, int) {
        char* panel = (char*)packed + p * bytes * panel_step;
        memset(panel, 0, bytes);
        for (int c = 0; c < width && p * width + c < out; ++c) {
            const float* from = weights + (p * width + c) * in;
            float inverse = 0;
            if (dtype == OCTAVO_I8) {
                float peak = 0;
                for (int k = 0; k < in; ++k) peak = std::max(peak, fabsf(from[k]));
                scales[p * width + c] = peak / 127.0f;
                inverse = peak > 0 ? 127.0f / peak : 0.0f;
            }
            for (int k = 0; k < in; ++k) {
                int64_t at = position(c, k, dtype);
                if (dtype == OCTAVO_I8) ((int8_t*)panel)[at] = (int8_t)lrintf(from[k] * inverse);
                else if (dtype == OCTAVO_BF16) ((bf16*)panel)[at] = narrow(from[k]);
                else ((float*)panel)[at] = from[k];
            }
        }
    });
}

void octavo_unpack(const OctavoLinear* linear, const int64_t* channels, int32_t count,
                   float* weights) {
    parallel_for(count, [&](int64_t i, int) {
        unpack_row(*linear, channels[i], weights + i * linear->in);
    });
}

int32_t octavo_panel(void) { return kPanel; }

void octavo_linear(const OctavoLinear* linear, const float* x, int64_t x_stride, int32_t rows,
                   float* y, int64_t y_stride) {
    Rows prepared{x, x_stride, nullptr, nullptr};
    std::vector<int16_t> ints;
    std::vector<float> scales;
    const int in = linear->in;
    if (linear->dtype == OCTAVO_I8) {
        ints.resize(rows * int_stride(in));
        scales.resize((int64_t)rows * blocks(in));
        auto quantise = [&](int64_t r, int) {
            quantise_row(x + r * x_stride, in, &ints[r * int_stride(in)], &scales[r * blocks(in)]);
        };
        if (rows < 8) for (int r = 0; r < rows; ++r) quantise(r, 0);
        else parallel_for(rows, quantise);
        prepared.ints = ints.data(), prepared.scales = scales.data();
    }
    const Tiling t = tile(*linear, rows, 1);
    const int width = kPanel, panels = panel_count(*linear);
    parallel_for(t.tasks(), [&](int64_t task, int) {
        int row = (int)(task % t.row_blocks) * t.row_block;
        int first = (int)(task / t.row_blocks) * t.panel_group;
        compute_panels(*linear, prepared, row, std::min(t.row_block, rows - row), first,
                       std::min(t.panel_group, panels - first),
                       y + row * y_stride + (int64_t)first * width, y_stride, false);
    });
}
