/* The plain C interface of Octavo's CPU kernels: what Python calls through ctypes.
 *
 * No torch headers: the library builds in seconds and fits any torch. Every pointer is to memory of
 * the caller; nothing is kept between calls but the number of threads. Rows are float32 or bfloat16
 * with the last dimension contiguous, strides are counted in elements. Arguments are checked on the
 * Python side. Results do not depend on the number of threads, nor on the other rows of a call.
 */
#ifndef OCTAVO_H
#define OCTAVO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OCTAVO_API __attribute__((visibility("default")))
#define OCTAVO_ABI 1 /* raised whenever a declaration below changes */

enum OctavoDtype { OCTAVO_F32 = 0, OCTAVO_BF16 = 1, OCTAVO_I8 = 2, OCTAVO_F16 = 3 };

/* ---- the library itself -------------------------------------------------------------------- */

OCTAVO_API int32_t octavo_abi(void);
/* "amx", "avx512", "avx2" or "neon": the instruction set this file was compiled for. */
OCTAVO_API const char* octavo_isa(void);
/* The fingerprint of the sources, as build.py computed it. */
OCTAVO_API const char* octavo_sources(void);
/* Threads of every later call, from any thread. At least 1. */
OCTAVO_API void octavo_set_threads(int32_t threads);
OCTAVO_API int32_t octavo_threads(void);
/* How many different threads one parallel region really ran on (a test's question). */
OCTAVO_API int32_t octavo_count_threads(void);

/* ---- pages --------------------------------------------------------------------------------- */

/* One layer's keys and values, each [pages, page_size, kv_heads, head_dim] of `dtype`. With int8 a
 * value is its number times the scale of its head and slot: scales are [pages, page_size, kv_heads]
 * and NULL for every other dtype. A slot never written may hold anything, NaN included. */
typedef struct OctavoPages {
    void* keys;
    void* values;
    float* key_scales;
    float* value_scales;
    int32_t dtype;
    int32_t page_size;
    int32_t kv_heads;
    int32_t head_dim;
} OctavoPages;

/* The geometry of one step: sequence i owns the packed rows query_starts[i] .. query_starts[i + 1],
 * the last ones of a context of context_lens[i] tokens. */
typedef struct OctavoBatch {
    const int64_t* slots;        /* [tokens]: where each row's key and value go */
    const int64_t* positions;    /* [tokens]: position of each row in its sequence */
    const int64_t* page_tables;  /* [sequences, table_stride] */
    const int32_t* query_starts; /* [sequences + 1] */
    const int32_t* context_lens; /* [sequences] */
    int64_t table_stride;
    int32_t sequences;
    int32_t tokens;
} OctavoBatch;

/* Write the rows' keys and values [tokens, kv_heads, head_dim] to their slots (attention.cpp). */
OCTAVO_API void octavo_write_pages(const OctavoPages* pages, const OctavoBatch* batch,
                                   const void* keys, const void* values, int32_t dtype,
                                   int64_t stride);

/* Causal attention of packed queries [tokens, query_heads, head_dim] over their contexts
 * (attention.cpp). `window` 0: none; w: a token sees the positions p - w + 1 .. p. */
OCTAVO_API void octavo_attention(const OctavoPages* pages, const OctavoBatch* batch,
                                 const void* query, void* output, int32_t dtype,
                                 int64_t query_stride, int64_t output_stride, int32_t query_heads,
                                 float scale, int32_t window);

/* ---- linear layers (linear.cpp) ------------------------------------------------------------ */

/* y = x W^T + bias, W [out, in] packed into panels. `dtype` is that of the weights: float32,
 * bfloat16, or int8 with a scale for each output channel. */
typedef struct OctavoLinear {
    const void* weights; /* packed, 64-byte aligned */
    const float* scales; /* [out], int8 only, else NULL */
    const float* bias;   /* [out] or NULL */
    int32_t in;
    int32_t out;
    int32_t dtype;
    int32_t reserved;
} OctavoLinear;

/* Bytes that the packed weights take. */
OCTAVO_API int64_t octavo_packed_bytes(int32_t in, int32_t out, int32_t dtype);
/* Pack float32 weights [out, in]; `scales` [out] is written for int8 and may be NULL otherwise. */
OCTAVO_API void octavo_pack(const float* weights, int32_t in, int32_t out, int32_t dtype,
                            void* packed, float* scales);
/* The packed weights as float32 [out, in] again: what the kernel multiplies with. */
OCTAVO_API void octavo_unpack(const OctavoLinear* linear, float* weights);
/* y [rows, out] = x [rows, in] W^T + bias, both float32. */
OCTAVO_API void octavo_linear(const OctavoLinear* linear, const float* x, int64_t x_stride,
                              int32_t rows, float* y, int64_t y_stride);

#ifdef __cplusplus
}
#endif
#endif
