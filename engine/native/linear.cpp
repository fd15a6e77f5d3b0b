// Linear layers over packed weights: float32, bfloat16 and int8, any shape, any number of rows.
//
// float32 and bfloat16 weights are multiplied as float32 (a bfloat16 is widened by a shift). int8
// weights meet activations of 16 bits: products of int16 pairs are summed exactly in int32 and
// flushed to float32 once per block, at twice the rate of float32 arithmetic on AVX2. Where there
// is AMX, its tiles multiply int8 and bfloat16 weights instead (amx.h).
#include "linear.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "fetch.h"
#include "parallel.h"
#if defined(__AMX_INT8__)
#include "amx.h"
#endif

namespace octavo {
namespace {

constexpr int kTileRows = kLanes == 8 ? 6 : 12;  // 16 registers, or 32

constexpr int64_t kTaskBytes = 32768;  // weights of a task, at least
constexpr int kMinTasks = 8;           // so that a slowed core leaves work to the others

constexpr int64_t kSmall = 1 << 17;    // products that one thread has done before another is awake

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

/// A block of `n` values of k of one panel and the rows that meet it. The sums of some rows stay in
/// registers, `out` [rows, kPanel] has them before and after.
template <class W>
struct FloatBlock {
    static constexpr int kPerK = std::is_same_v<W, float> ? kPanel : kPanel / 2;

    const W* weights;
    const float* x;
    int64_t stride;
    int n;
    float* out;
    bool fresh;  // there are no sums yet

    int iterations() const { return n; }
    static constexpr int bytes() { return kPerK * (int)sizeof(W); }  // of an iteration

    template <int R>
    void multiply(int row, Fetch fetch) const {
        const W* w = weights;
        const float* from = x + row * stride;
        float* to = out + row * kPanel;
        Vec acc[R][kVectors];
        ALL_OF(R) {
            acc[i][0] = fresh ? Vec{} : load(to + i * kPanel);
            acc[i][1] = fresh ? Vec{} : load(to + i * kPanel + kLanes);
        }
        for (int k = 0; k < n; ++k, w += kPerK) {
            Vec pair[kVectors];
            load_weights(w, pair);
            fetch.next();
            ALL_OF(R) {
                Vec a = broadcast(from[i * stride + k]);
                acc[i][0] = fma(pair[0], a, acc[i][0]);
                acc[i][1] = fma(pair[1], a, acc[i][1]);
            }
        }
        ALL_OF(R) {
            store(to + i * kPanel, acc[i][0]);
            store(to + i * kPanel + kLanes, acc[i][1]);
        }
    }
};

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

/// As FloatBlock, of `pairs` pairs of k: exact sums, that are added to `out` scaled.
struct ByteBlock {
    const int8_t* weights;
    const int16_t* x;
    int64_t stride;
    const float* scales;
    int scale_stride;
    int pairs;
    float* out;
    bool fresh;

    int iterations() const { return pairs; }
    static constexpr int bytes() { return 2 * kPanel; }

    template <int R>
    void multiply(int row, Fetch fetch) const {
        IntVec acc[R][kVectors];
        const char* from[R];
        ALL_OF(R) {
            acc[i][0] = acc[i][1] = IntVec{};
            from[i] = (const char*)(x + (row + i) * stride);
        }
        // One counter for all addresses: bytes of a row.
        for (int64_t at = 0; at < 4 * (int64_t)pairs; at += 4) {
            const int8_t* w = weights + at * (kPanel / 2);
            const ShortVec first = load_bytes(w), second = load_bytes(w + kPanel);
            fetch.next();
            ALL_OF(R) {
                int32_t pair;
                memcpy(&pair, from[i] + at, sizeof pair);
                const ShortVec a = bits<ShortVec>(broadcast_int(pair));
                acc[i][0] = add_pairs(acc[i][0], first, a);
                acc[i][1] = add_pairs(acc[i][1], second, a);
            }
        }
        ALL_OF(R) {
            const Vec scale = broadcast(scales[(row + i) * scale_stride]);
            float* to = out + (row + i) * kPanel;
            Vec first = fresh ? Vec{} : load(to), second = fresh ? Vec{} : load(to + kLanes);
            store(to, fma(__builtin_convertvector(acc[i][0], Vec), scale, first));
            store(to + kLanes, fma(__builtin_convertvector(acc[i][1], Vec), scale, second));
        }
    }
};

// ---- all rows of a task ------------------------------------------------------------------------

/// The rows row .. rows of a block, R at a time and then what is left; `tile` tiles are done.
template <int R, class Block>
void multiply_from(const Block& block, int row, int rows, int tile) {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (; row + R <= rows; row += R, ++tile) {
        block.template multiply<R>(
            row, share(block.weights, block.iterations(), block.bytes(), tile, tiles));
    }
    if constexpr (R > 1) {
        if (row < rows) multiply_from<R - 1>(block, row, rows, tile);
    }
}

template <class Block>
void multiply_rows(const Block& block, int rows) {
    multiply_from<kTileRows>(block, 0, rows, 0);
}

/// sums [rows, kPanel] (+)= a block of `n` values of k from `k` on, a multiple of kBlock.
void multiply_block(const OctavoLinear& linear, const void* panel, const Rows& x, int row, int rows,
                    int k, int n, float* sums) {
    const int in = linear.in, width = kPanel;
    const int64_t stride = int_stride(in), at = (int64_t)k * width;
    if (linear.dtype == OCTAVO_F32) {
        multiply_rows(FloatBlock<float>{(const float*)panel + at, x.floats + row * x.stride + k,
                                        x.stride, n, sums, k == 0},
                      rows);
        return;
    }
    const float* scales = x.scales + row * blocks(in) + k / kBlock;
#if defined(__AMX_INT8__)
    const int size = linear.dtype == OCTAVO_I8 ? 1 : 2;
    const TileBlock block{(const char*)panel + at * size, (n * size + kStep - 1) / kStep,
                          (const char*)(x.ints + row * stride) + k * size, 2 * stride,
                          term_stride(in) * size, scales, blocks(in), k == 0};
    if (linear.dtype == OCTAVO_I8) multiply_tiles<int8_t>(block, rows, sums);
    else multiply_tiles<bf16>(block, rows, sums);
#else
    if (linear.dtype == OCTAVO_I8) {
        multiply_rows(ByteBlock{(const int8_t*)panel + at, x.ints + row * stride + k, stride,
                                scales, blocks(in), (n + 1) / 2, sums, k == 0},
                      rows);
    } else {  // two channels to a lane
        multiply_rows(FloatBlock<uint32_t>{(const uint32_t*)panel + at / 2,
                                           x.floats + row * x.stride + k, x.stride, n, sums,
                                           k == 0},
                      rows);
    }
#endif
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

}  // namespace

void compute_panels(const OctavoLinear& linear, const Rows& x, int row, int rows, int first,
                    int panels, float* out, int64_t out_stride, bool add) {
    const int width = kPanel, in = linear.in;
    const int64_t bytes = panel_bytes(in, linear.dtype);
    alignas(64) float sums[kRowBlock * kPanel];
#if defined(__AMX_INT8__)
    const TilesInUse tiles(tile_height(rows));
#endif
    for (int p = 0; p < panels; ++p) {
        const char* panel = (const char*)linear.weights + (first + p) * bytes * linear.panel_step;
        for (int k = 0; k < in; k += kBlock)
            multiply_block(linear, panel, x, row, rows, k, std::min(kBlock, in - k), sums);
        finish(linear, (first + p) * width, width, rows, sums, width, out + p * width, out_stride,
               add);
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

void octavo_linear(const OctavoLinear* linear, const float* x, int64_t x_stride, int32_t rows,
                   float* y, int64_t y_stride) {
    Rows prepared{x, x_stride, nullptr, nullptr};
    std::vector<int16_t> ints;
    std::vector<float> scales;
    const int in = linear->in;
    if (wants_prepared(linear->dtype)) {
        ints.resize(rows * int_stride(in));
        scales.resize((int64_t)rows * blocks(in));
        auto prepare = [&](int64_t r, int) {
            prepare_row(linear->dtype, x + r * x_stride, in, &ints[r * int_stride(in)],
                        &scales[r * blocks(in)]);
        };
        if (rows < 8) for (int r = 0; r < rows; ++r) prepare(r, 0);
        else parallel_for(rows, prepare);
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
