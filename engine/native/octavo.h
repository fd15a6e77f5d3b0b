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
#define OCTAVO_ABI 2 /* raised whenever a declaration below changes */

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

/* Reads `bytes` of memory with all threads: what a benchmark takes the bandwidth from. The result
 * means nothing. */
OCTAVO_API int64_t octavo_read(const void* memory, int64_t bytes);

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

/* y [rows, width] = x / sqrt(mean(x^2) + eps) * weight for rows of float32 or bfloat16 (norm.cpp).
 * `rounded`: the quotient takes the rows' dtype before it is weighted, as Llama does. */
OCTAVO_API void octavo_rms_norm(const void* x, int32_t dtype, int64_t rows, int64_t stride,
                                const float* weight, int32_t width, float eps, int32_t rounded,
                                void* y);

/* ---- sampling (sample.cpp) ------------------------------------------------------------------- */

/* One draw from a row of logits. `temperature` 0: greedy. `top_k` 0, `top_p` 1 and `min_p` 0 leave
 * out their filter. */
typedef struct OctavoDraw {
    double top_p;
    int64_t row;
    int64_t top_k;
    float temperature;
    float min_p;
} OctavoDraw;

/* The token of each draw; -1 for a row whose largest logit is not finite or that holds a NaN.
 * numbers: [count, halvings] of [0, 1), each halves the token ids, the first 2^halvings of them. */
OCTAVO_API void octavo_draw(const void* logits, int32_t dtype, int64_t stride, int32_t vocab,
                            const OctavoDraw* draws, const double* numbers, int32_t halvings,
                            int32_t count, int64_t* tokens);

/* What is asked of a row of logits: the log-probability of a token, and the `top` likeliest. */
typedef struct OctavoScore {
    int64_t row;
    int64_t token;
    int64_t top;
} OctavoScore;

/* Log-probabilities under the model (logprobs.cpp). `ranks` [count]: 1 + how many tokens are
 * likelier, 0 for a row whose largest logit is not finite or that holds a NaN; of such a row
 * nothing else is written. `top_ids` and `top_logprobs` [count, width]: the likeliest first, of
 * equals the smaller id; -1 where a row has fewer finite logits. */
OCTAVO_API void octavo_logprobs(const void* logits, int32_t dtype, int64_t stride, int32_t vocab,
                                const OctavoScore* scores, int32_t count, double* logprobs,
                                int64_t* ranks, int32_t width, int64_t* top_ids,
                                double* top_logprobs);

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
    int32_t panel_step; /* 1; n: only every n-th panel of the memory belongs to this layer */
} OctavoLinear;

/* Bytes that the packed weights take. */
OCTAVO_API int64_t octavo_packed_bytes(int32_t in, int32_t out, int32_t dtype);
/* Pack float32 weights [out, in]; `scales` [out] is written for int8 and may be NULL otherwise. */
OCTAVO_API void octavo_pack(const float* weights, int32_t in, int32_t out, int32_t dtype,
                            int32_t panel_step, void* packed, float* scales);
/* Rows of the packed weights as float32 [count, in]: what the kernel multiplies with, and the
 * embedding of a model whose head shares its weights. */
OCTAVO_API void octavo_unpack(const OctavoLinear* linear, const int64_t* channels, int32_t count,
                              float* weights);
/* y [rows, out] = x [rows, in] W^T + bias, both float32. */
OCTAVO_API void octavo_linear(const OctavoLinear* linear, const float* x, int64_t x_stride,
                              int32_t rows, float* y, int64_t y_stride);

/* ---- the Llama family, whole (layer.cpp) ------------------------------------------------------ */

/* One decoder layer: RMSNorm, rotary attention with grouped heads, RMSNorm, SwiGLU. The channels of
 * qkv are those of the queries, keys and values, each padded with zeros to whole panels of
 * octavo_panel() channels; those of gate_up are panels of the gate and of up in turn, padded alike.
 * Norm weights are float32. */
typedef struct OctavoLayer {
    OctavoLinear qkv;
    OctavoLinear out;
    OctavoLinear gate_up;
    OctavoLinear down;
    const float* input_norm;     /* [hidden] */
    const float* attention_norm; /* [hidden], after attention */
    const float* query_norm;     /* [head_dim] or NULL */
    const float* key_norm;       /* [head_dim] or NULL */
    int32_t window;              /* 0: none */
    int32_t reserved;
} OctavoLayer;

typedef struct OctavoModel {
    const OctavoLayer* layers;
    const float* final_norm;
    const void* embedding; /* [vocab, hidden] of embedding_dtype; NULL: the rows of the head */
    const float* cosines;  /* [positions, head_dim / 2] */
    const float* sines;
    OctavoLinear head;
    int32_t num_layers;
    int32_t embedding_dtype;
    int32_t hidden;
    int32_t intermediate;
    int32_t query_heads;
    int32_t kv_heads;
    int32_t head_dim;
    float eps;
    float scale; /* of attention scores */
    int32_t reserved;
} OctavoModel;

typedef struct OctavoStep {
    const OctavoBatch* batch; /* with positions */
    const OctavoPages* pages; /* [num_layers] */
    const int64_t* token_ids; /* [tokens] */
    const int64_t* rows;      /* [num_rows]: packed rows whose logits are wanted */
    float* logits;            /* [num_rows, vocab] or NULL */
    int64_t* best;            /* [num_rows] or NULL: the first of the largest logits */
    float* peaks;             /* [num_rows], with best: that logit, NaN where any logit is one */
    void* workspace;          /* octavo_workspace_bytes(...), 64-byte aligned */
    int32_t num_rows;
    int32_t reserved;
} OctavoStep;

/* Output channels of one panel of packed weights. */
OCTAVO_API int32_t octavo_panel(void);
OCTAVO_API int64_t octavo_workspace_bytes(const OctavoModel* model, int32_t tokens, int32_t rows);
/* Embedding, all layers (writing the pages), final norm, head. */
OCTAVO_API void octavo_model_step(const OctavoModel* model, const OctavoStep* step);

#ifdef __cplusplus
}
#endif
#endif
