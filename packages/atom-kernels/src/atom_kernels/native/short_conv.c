/* Depthwise causal convolutions of ragged batches, and silu; float32 inside, states of the last inputs in slots. */
#include "silu.h"

#define BLOCK 256 /* channels of a task */
#define PARALLEL_ELEMENTS 8192

/* weight is [width][channels] of floats; states are [slots][channels][width - 1], with slots `stride` apart. */
#define DEFINE_SHORT_CONV(T)                                                                                       \
    static void conv_sequence_##T(const T *x, T *out, T *states, const float *weight, int64_t channels,            \
                                  int64_t width, int64_t stride, int64_t at, int64_t slot, const int32_t *kept,    \
                                  int64_t num_kept, int64_t rows, int fresh) {                                     \
        int64_t before = width - 1, size = channels - at < BLOCK ? channels - at : BLOCK;                          \
        T past[before * BLOCK];                                                                                    \
        const T *in[width];                                                                                        \
        const T *state = states + slot * stride + at * before;                                                     \
        for (int64_t j = 0; j < before; j++)                                                                       \
            for (int64_t c = 0; c < size; c++) past[j * BLOCK + c] = fresh ? 0 : state[c * before + j];            \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            for (int64_t j = 0; j < width; j++) {                                                                  \
                int64_t from = row - before + j;                                                                   \
                in[j] = from < 0 ? past + (row + j) * BLOCK : x + from * channels + at;                            \
            }                                                                                                      \
            T *to = out + row * channels + at;                                                                     \
            int64_t c = 0;                                                                                         \
            for (; c + VL <= size; c += VL) {                                                                      \
                vf sum = vf_set(0.0f);                                                                             \
                for (int64_t j = 0; j < width; j++)                                                                \
                    sum += vf_load_##T(in[j] + c) * vf_load(weight + j * channels + at + c);                       \
                vf_store_##T(to + c, vf_silu(sum));                                                                \
            }                                                                                                      \
            for (; c < size; c++) {                                                                                \
                float sum = 0.0f;                                                                                  \
                for (int64_t j = 0; j < width; j++)                                                                \
                    sum += T##_to_float(in[j][c]) * weight[j * channels + at + c];                                 \
                to[c] = float_to_##T(vf_silu(vf_set(sum))[0]);                                                     \
            }                                                                                                      \
            int64_t column = num_kept - (rows - row);                                                              \
            if (column < 0 || kept[column] < 0 || (rows > num_kept && row < rows - 1)) continue;                   \
            T *keep = states + kept[column] * stride + at * before;                                                \
            for (int64_t i = 0; i < size; i++)                                                                     \
                for (int64_t j = 0; j < before; j++) keep[i * before + j] = in[j + 1][i];                          \
        }                                                                                                          \
    }                                                                                                              \
                                                                                                                   \
    void short_conv_##T(const T *x, T *out, T *states, const int32_t *slots, const int32_t *kept,                  \
                        const int32_t *starts, const int32_t *lengths, const float *weight, int64_t num_rows,      \
                        int64_t num_sequences, int64_t num_kept, int64_t channels, int64_t width, int64_t stride) {\
        int64_t blocks = (channels + BLOCK - 1) / BLOCK;                                                           \
        _Pragma("omp parallel for collapse(2) schedule(dynamic) if (num_rows * channels > PARALLEL_ELEMENTS)")     \
        for (int64_t s = 0; s < num_sequences; s++)                                                                \
            for (int64_t block = 0; block < blocks; block++) {                                                     \
                int64_t first = starts[s], rows = starts[s + 1] - first, at = block * BLOCK;                       \
                int64_t size = channels - at < BLOCK ? channels - at : BLOCK;                                      \
                if (slots[s] < 0)                                                                                  \
                    for (int64_t row = first; row < first + rows; row++)                                           \
                        memset(out + row * channels + at, 0, size * sizeof(T));                                    \
                else                                                                                               \
                    conv_sequence_##T(x + first * channels, out + first * channels, states, weight, channels,      \
                                      width, stride, at, slots[s], kept + s * num_kept, num_kept, rows,            \
                                      lengths[s] == rows);                                                         \
            }                                                                                                      \
        int64_t end = starts[num_sequences];                                                                       \
        memset(out, 0, starts[0] * channels * sizeof(T));                                                          \
        memset(out + end * channels, 0, (num_rows - end) * channels * sizeof(T));                                  \
    }

DEFINE_SHORT_CONV(bf16)
DEFINE_SHORT_CONV(f32)
