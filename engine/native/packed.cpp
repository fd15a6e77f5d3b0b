// The layout of packed weights: where each one lies, how they get there and how a row is read back.
//
// A panel holds kPanel output channels. float32 and int8 weights lie k by k (int8 in pairs of k),
// two channels of bfloat16 share a 32-bit lane. AMX wants what its tiles are: of each step of 64
// bytes of k a tile of sixteen channels and another one, a channel's neighbours in k in one lane.
#include <math.h>

#include <algorithm>

#include "linear.h"
#include "parallel.h"

namespace octavo {
namespace {

int bytes_of(int dtype) { return dtype == OCTAVO_I8 ? 1 : dtype == OCTAVO_BF16 ? 2 : 4; }

/// k is padded with zeros to multiples of this.
int depth(int dtype) {
    if (kAmx && dtype != OCTAVO_F32) return 64 / bytes_of(dtype);
    return dtype == OCTAVO_I8 ? 2 : 1;
}

/// Where weight (channel, k) of a panel lies, counted in elements.
int64_t position(int channel, int k, int dtype) {
    const int64_t width = kPanel;
    if (kAmx && dtype != OCTAVO_F32) {
        const int lane = 4 / bytes_of(dtype), step = k / depth(dtype), in_step = k % depth(dtype);
        const int64_t tile = (step * width + channel / 16 * 16) * depth(dtype);
        return tile + (in_step / lane * 16 + channel % 16) * lane + in_step % lane;
    }
    switch (dtype) {
        case OCTAVO_I8: return (k / 2 * width + channel) * 2 + k % 2;
        case OCTAVO_BF16: {
            int pair = channel / (2 * kLanes), in_pair = channel % (2 * kLanes);
            return k * width + pair * 2 * kLanes + in_pair % kLanes * 2 + in_pair / kLanes;
        }
        default: return k * width + channel;
    }
}

}  // namespace

int64_t panel_bytes(int in, int dtype) {
    return padded(in, depth(dtype)) * kPanel * bytes_of(dtype);
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
