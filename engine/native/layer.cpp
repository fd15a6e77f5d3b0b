// The Llama family as one call: embedding, all decoder layers, final norm and head.
//
// A layer is five parallel loops: QKV, attention, output + residual, gate/up + SiLU, down +
// residual; what lies between (norms, rotary, quantising a row) takes microseconds and is done row
// by row before each. The residual stream and all activations are float32. Follows transformers'
// Llama, Mistral, Qwen2 and Qwen3 operation by operation; sums may be taken in another order.
#include <math.h>

#include <algorithm>

#include "linear.h"
#include "octavo.h"
#include "parallel.h"
#include "vec.h"

namespace octavo {
namespace {

constexpr int kFewRows = 4;  // up to here a loop over rows is not worth waking the other threads

/// f(first, last) over stretches of rows.
template <class F>
void for_rows(int rows, const F& f) {
    if (rows <= kFewRows) return f(0, rows);
    constexpr int kStretch = 8;
    parallel_for((rows + kStretch - 1) / kStretch, [&](int64_t task, int) {
        int first = (int)task * kStretch;
        f(first, std::min(first + kStretch, rows));
    });
}

/// y = weight * x / rms(x)
void norm_row(const float* x, const float* weight, int n, float eps, float* y) {
    Vec squares{};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    if (i < n) {
        Vec rest = load_some(x + i, n - i);
        squares = fma(rest, rest, squares);
    }
    const float inverse = 1.0f / sqrtf(sum(squares) / n + eps);
    for (i = 0; i + kLanes <= n; i += kLanes)
        store(y + i, load(weight + i) * (load(x + i) * inverse));
    for (; i < n; ++i) y[i] = weight[i] * (x[i] * inverse);
}

/// Rotate one head: pairs are (i, i + half).
void rotate_head(float* x, const float* cosines, const float* sines, int half) {
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        Vec a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; ++i) {
        float a = x[i], b = x[half + i];
        x[i] = a * cosines[i] - b * sines[i];
        x[half + i] = b * cosines[i] + a * sines[i];
    }
}

/// Where the buffers of a step lie in the workspace.
struct Workspace {
    float* residual;  // [tokens, hidden]
    float* floats;    // [tokens, widest]: rows in front of a linear layer
    float* wide;      // [tokens, QKV or intermediate]
    float* scales;
    int16_t* ints;
    float* task_peaks;  // [head tasks, rows]
    int64_t* task_best;
    int64_t bytes;

    Workspace(const OctavoModel& m, int tokens, int rows, void* base) {
        const int64_t n = std::max(tokens, rows);
        const int widest = std::max({m.hidden, m.intermediate, m.query_heads * m.head_dim});
        const int64_t tasks = tile(m.head, rows, 1).tasks();
        bytes = 0;
        residual = take<float>(base, (int64_t)tokens * m.hidden);
        floats = take<float>(base, n * widest);
        const int widest_out = std::max(m.layers[0].qkv.out, m.intermediate);
        wide = take<float>(base, (int64_t)tokens * widest_out);
        scales = take<float>(base, n * blocks(widest));
        ints = take<int16_t>(base, n * int_stride(widest));
        task_peaks = take<float>(base, tasks * rows);
        task_best = take<int64_t>(base, tasks * rows);
    }

    template <class T>
    T* take(void* base, int64_t count) {
        T* at = (T*)((char*)base + bytes);
        bytes += padded(count * (int64_t)sizeof(T), 64);
        return at;
    }
};

class Step {
  public:
    Step(const OctavoModel& model, const OctavoStep& step)
        : m_(model),
          s_(step),
          w_(model, step.batch->tokens, step.num_rows, step.workspace),
          tokens_(step.batch->tokens) {}

    void run() {
        embed();
        for (int i = 0; i < m_.num_layers; ++i) layer(m_.layers[i], s_.pages[i]);
        if (s_.num_rows > 0) head();
    }

  private:
    const OctavoModel& m_;
    const OctavoStep& s_;
    Workspace w_;
    int tokens_;

    void embed() {
        for_rows(tokens_, [&](int first, int last) {
            for (int r = first; r < last; ++r) {
                const int64_t token = s_.token_ids[r];
                float* x = w_.residual + (int64_t)r * m_.hidden;
                if (!m_.embedding) {
                    unpack_row(m_.head, token, x);
                } else if (m_.embedding_dtype == OCTAVO_BF16) {
                    const bf16* from = (const bf16*)m_.embedding + token * m_.hidden;
                    for (int i = 0; i < m_.hidden; ++i) x[i] = widen(from[i]);
                } else {
                    memcpy(x, (const float*)m_.embedding + token * m_.hidden, m_.hidden * 4);
                }
            }
        });
    }

    void layer(const OctavoLayer& layer, const OctavoPages& pages) {
        const int query_width = m_.query_heads * m_.head_dim;
        const int keys_at = (int)padded(query_width, kPanel);
        const int values_at = keys_at + (int)padded(m_.kv_heads * m_.head_dim, kPanel);
        const int width = layer.qkv.out;
        multiply(layer.qkv, prepare(layer.qkv, w_.residual, m_.hidden, layer.input_norm), w_.wide,
                 width, false);
        rotate(layer, keys_at);
        octavo_write_pages(&pages, s_.batch, w_.wide + keys_at, w_.wide + values_at, OCTAVO_F32,
                           width);
        octavo_attention(&pages, s_.batch, w_.wide, w_.floats, OCTAVO_F32, width, query_width,
                         m_.query_heads, m_.scale, layer.window);
        multiply(layer.out, prepare(layer.out, w_.floats, query_width, nullptr), w_.residual,
                 m_.hidden, true);
        gate_up(layer.gate_up,
                prepare(layer.gate_up, w_.residual, m_.hidden, layer.attention_norm));
        multiply(layer.down, prepare(layer.down, w_.wide, m_.intermediate, nullptr), w_.residual,
                 m_.hidden, true);
    }

    /// The tokens' rows as a linear layer takes them: normed, and in the form of its weights.
    Rows prepare(const OctavoLinear& linear, const float* from, int64_t stride,
                 const float* norm) {
        if (norm || wants_prepared(linear.dtype)) {
            for_rows(tokens_, [&](int first, int last) {
                for (int r = first; r < last; ++r) ready_row(linear, r, from + r * stride, norm);
            });
        }
        return norm ? Rows{w_.floats, linear.in, w_.ints, w_.scales}
                    : Rows{from, stride, w_.ints, w_.scales};
    }

    void ready_row(const OctavoLinear& linear, int64_t r, const float* x, const float* norm) {
        const int in = linear.in;
        if (norm) {
            float* y = w_.floats + r * in;
            norm_row(x, norm, in, m_.eps, y);
            x = y;
        }
        if (wants_prepared(linear.dtype))
            prepare_row(linear.dtype, x, in, w_.ints + r * int_stride(in),
                        w_.scales + r * blocks(in));
    }

    void multiply(const OctavoLinear& linear, const Rows& x, float* y, int64_t stride, bool add) {
        const Tiling t = tile(linear, tokens_, 1);
        const int panels = panel_count(linear);
        parallel_for(t.tasks(), [&](int64_t task, int) {
            const int row = (int)(task % t.row_blocks) * t.row_block;
            const int first = (int)(task / t.row_blocks) * t.panel_group;
            compute_panels(linear, x, row, std::min(t.row_block, tokens_ - row), first,
                           std::min(t.panel_group, panels - first),
                           y + row * stride + (int64_t)first * kPanel, stride, add);
        });
    }

    /// wide[r, i] = silu(gate) * up, from pairs of panels.
    void gate_up(const OctavoLinear& linear, const Rows& x) {
        const Tiling t = tile(linear, tokens_, 2);
        const int panels = panel_count(linear), inner = m_.intermediate;
        parallel_for(t.tasks(), [&](int64_t task, int) {
            const int row = (int)(task % t.row_blocks) * t.row_block;
            const int rows = std::min(t.row_block, tokens_ - row);
            const int first = (int)(task / t.row_blocks) * t.panel_group;
            const int last = std::min(first + t.panel_group, panels);
            alignas(64) float pair[kRowBlock * 2 * kPanel];
            for (int p = first; p < last; p += 2) {
                compute_panels(linear, x, row, rows, p, 2, pair, 2 * kPanel, false);
                const int at = p / 2 * kPanel;
                for (int r = 0; r < rows; ++r)
                    activate(pair + r * 2 * kPanel, w_.wide + (int64_t)(row + r) * inner + at,
                             std::min(kPanel, inner - at));
            }
        });
    }

    static void activate(const float* pair, float* y, int wanted) {
        for (int i = 0; i < wanted; i += kLanes) {
            Vec product = silu(load(pair + i)) * load(pair + kPanel + i);
            if (i + kLanes <= wanted) store(y + i, product);
            else store_some(y + i, product, wanted - i);
        }
    }

    /// Queries and keys: normed where the model does, then rotated by their positions.
    void rotate(const OctavoLayer& layer, int keys_at) {
        const int half = m_.head_dim / 2;
        for_rows(tokens_, [&](int first, int last) {
            for (int r = first; r < last; ++r) {
                float* row = w_.wide + (int64_t)r * layer.qkv.out;
                const float* cosines = m_.cosines + s_.batch->positions[r] * half;
                const float* sines = m_.sines + s_.batch->positions[r] * half;
                for (int h = 0; h < m_.query_heads + m_.kv_heads; ++h) {
                    const bool query = h < m_.query_heads;
                    float* x = row + (query ? h : h - m_.query_heads) * m_.head_dim;
                    if (!query) x += keys_at;
                    const float* norm = query ? layer.query_norm : layer.key_norm;
                    if (norm) norm_row(x, norm, m_.head_dim, m_.eps, x);
                    rotate_head(x, cosines, sines, half);
                }
            }
        });
    }

    void head() {
        const int rows = s_.num_rows;
        for_rows(rows, [&](int first, int last) {
            for (int r = first; r < last; ++r)
                ready_row(m_.head, r, w_.residual + s_.rows[r] * m_.hidden, m_.final_norm);
        });
        const Rows x{w_.floats, m_.hidden, w_.ints, w_.scales};
        const Tiling t = tile(m_.head, rows, 1);
        const int panels = panel_count(m_.head);
        parallel_for(t.tasks(), [&](int64_t task, int) {
            const int row = (int)(task % t.row_blocks) * t.row_block;
            const int count = std::min(t.row_block, rows - row);
            const int first = (int)(task / t.row_blocks) * t.panel_group;
            const int last = std::min(first + t.panel_group, panels);
            float* peaks = w_.task_peaks + task / t.row_blocks * rows + row;
            int64_t* best = w_.task_best + task / t.row_blocks * rows + row;
            alignas(64) float scratch[kRowBlock * kPanel];
            for (int p = first; p < last; ++p) {
                const int64_t channel = (int64_t)p * kPanel;
                float* to = s_.logits ? s_.logits + row * (int64_t)m_.head.out + channel : scratch;
                const int64_t stride = s_.logits ? m_.head.out : kPanel;
                compute_panels(m_.head, x, row, count, p, 1, to, stride, false);
                if (!s_.best) continue;
                const int width = (int)std::min<int64_t>(kPanel, m_.head.out - channel);
                for (int r = 0; r < count; ++r)
                    take_best(to + r * stride, width, channel, p == first, peaks[r], best[r]);
            }
        });
        if (s_.best) gather_best(t.panel_groups);
    }

    /// Follow the first of the largest numbers, and NaN once there was one.
    static void take_best(const float* x, int n, int64_t channel, bool fresh, float& peak,
                          int64_t& best) {
        if (fresh) peak = -INFINITY, best = channel;
        Vec top = broadcast(peak);
        IntVec odd{};
        for (int i = 0; i < n; i += kLanes) {
            Vec v = i + kLanes <= n ? load(x + i) : load_some(x + i, n - i);
            if (i + kLanes > n)  // the lanes beyond are no candidates
                for (int lane = n - i; lane < kLanes; ++lane) v[lane] = -INFINITY;
            odd |= v != v;
            top = max(v, top);
        }
        float largest_here = largest(top);
        bool nan = peak != peak;
        for (int lane = 0; lane < kLanes; ++lane) nan |= odd[lane] != 0;
        if (nan) {
            peak = NAN;
        } else if (largest_here > peak) {
            peak = largest_here;
            int i = 0;
            while (x[i] != peak) ++i;
            best = channel + i;
        }
    }

    void gather_best(int groups) {
        const int rows = s_.num_rows;
        for (int r = 0; r < rows; ++r) {
            float peak = w_.task_peaks[r];
            int64_t best = w_.task_best[r];
            for (int g = 1; g < groups; ++g) {
                float other = w_.task_peaks[(int64_t)g * rows + r];
                if (other > peak || other != other) {
                    peak = other;
                    best = w_.task_best[(int64_t)g * rows + r];
                }
                if (peak != peak) break;
            }
            s_.peaks[r] = peak;
            s_.best[r] = best;
        }
    }
};

}  // namespace
}  // namespace octavo

int64_t octavo_workspace_bytes(const OctavoModel* model, int32_t tokens, int32_t rows) {
    return octavo::Workspace(*model, tokens, rows, nullptr).bytes;
}

void octavo_model_step(const OctavoModel* model, const OctavoStep* step) {
    octavo::Step(*model, *step).run();
}
