/* The gated delta rule, token by token: a block of a head's state stays in the first cache while its rows go by.

On a CPU this takes fewer multiplications than chunks do (4 for an element of the state and a token, against 4.5 and
what solving costs), and nothing of how a sequence is cut into steps can be seen in its bits. */
#include "vector.h"

#define COLUMNS 32 /* of a state, at a time: 128 rows of them are 16 KiB */
#define VECTORS (COLUMNS / VL)
#define ROWS 64    /* whose queries, keys and decays are prepared at a time */
#define NORM_EPS 1e-6f

/* log(1 + exp(x)), by 2 atanh(u / (2 + u)) = log(1 + u) for u = exp(-|x|). */
INLINE vf vf_softplus(vf x) {
    vf u = vf_exp(vf_select(x < 0.0f, x, -x));
    vf s = u / (u + 2.0f), s2 = s * s;
    vf p = vf_set(2.0f / 15);
    p = p * s2 + 2.0f / 13;
    p = p * s2 + 2.0f / 11;
    p = p * s2 + 2.0f / 9;
    p = p * s2 + 2.0f / 7;
    p = p * s2 + 2.0f / 5;
    p = p * s2 + 2.0f / 3;
    p = p * s2 + 2.0f;
    return vf_max(vf_set(0.0f), x) + p * s;
}

INLINE float sigmoid(float x) {
    float decay = scalar_exp(x < 0 ? x : -x);
    return (x < 0 ? decay : 1.0f) / (1.0f + decay);
}

/* Scales `padded` floats, whose last ones are zeros, to the norm `scale`. */
static void normalize(float *x, int64_t padded, float scale) {
    vf sum = vf_set(0.0f);
    for (int64_t i = 0; i < padded; i += VL) sum += vf_load(x + i) * vf_load(x + i);
    float factor = scale / sqrtf(vf_hsum(sum) + NORM_EPS);
    for (int64_t i = 0; i < padded; i += VL) vf_store(x + i, vf_load(x + i) * factor);
}

/* One token: S decays, gets k (beta (v - S^T k))^T, and q reads it. A row of S has COLUMNS floats. */
static void step(float *state, const float *q, const float *k, const float *decay, const float *v, float beta,
                 float *out, int64_t size) {
    vf said[2][VECTORS], read[2][VECTORS], delta[VECTORS];
    for (int i = 0; i < VECTORS; i++) said[0][i] = said[1][i] = read[0][i] = read[1][i] = vf_set(0.0f);
    for (int64_t x = 0; x < size; x += 2)
        for (int half = 0; half < 2; half++) {
            vf weight = vf_set(k[x + half] * decay[x + half]);
            for (int i = 0; i < VECTORS; i++)
                said[half][i] += weight * vf_load(state + (x + half) * COLUMNS + i * VL);
        }
    for (int i = 0; i < VECTORS; i++) delta[i] = (vf_load(v + i * VL) - (said[0][i] + said[1][i])) * beta;
    for (int64_t x = 0; x < size; x += 2)
        for (int half = 0; half < 2; half++) {
            float *row = state + (x + half) * COLUMNS;
            for (int i = 0; i < VECTORS; i++) {
                vf now = vf_load(row + i * VL) * decay[x + half] + delta[i] * k[x + half];
                vf_store(row + i * VL, now);
                read[half][i] += now * q[x + half];
            }
        }
    for (int i = 0; i < VECTORS; i++) vf_store(out + i * VL, read[0][i] + read[1][i]);
}

typedef struct {
    int64_t key_heads, heads, key_dim, value_dim, gates_of_head; /* 1, or key_dim */
    int64_t num_kept, stride; /* elements from one slot to the next */
    const float *rates, *bias; /* exp(a_log) [heads], dt_bias [heads * gates_of_head] */
} delta_sizes;

#define DEFINE_GATED_DELTA(T)                                                                                      \
    INLINE void load_floats_##T(float *to, const T *from, int64_t size, int64_t padded) {                          \
        int64_t i = 0;                                                                                             \
        for (; i + VL <= size; i += VL) vf_store(to + i, vf_load_##T(from + i));                                   \
        for (; i < size; i++) to[i] = T##_to_float(from[i]);                                                       \
        for (; i < padded; i++) to[i] = 0.0f;                                                                      \
    }                                                                                                              \
                                                                                                                   \
    /* Queries, keys and decays of a row and head. */                                                              \
    static void prepare_##T(const delta_sizes *z, const T *qkv, const T *a, int64_t head, int64_t padded,          \
                            float *q, float *k, float *decay) {                                                    \
        int64_t key_head = head / (z->heads / z->key_heads);                                                       \
        load_floats_##T(q, qkv + key_head * z->key_dim, z->key_dim, padded);                                       \
        load_floats_##T(k, qkv + (z->key_heads + key_head) * z->key_dim, z->key_dim, padded);                      \
        normalize(q, padded, 1.0f / sqrtf((float)z->key_dim));                                                     \
        normalize(k, padded, 1.0f);                                                                                \
        float rate = -z->rates[head];                                                                              \
        const T *gate = a + head * z->gates_of_head;                                                               \
        const float *bias = z->bias + head * z->gates_of_head;                                                     \
        if (z->gates_of_head == 1) {                                                                               \
            vf one = vf_exp(vf_softplus(vf_set(T##_to_float(gate[0]) + bias[0])) * rate);                          \
            for (int64_t x = 0; x < padded; x += VL) vf_store(decay + x, one);                                     \
            return;                                                                                                \
        }                                                                                                          \
        load_floats_##T(decay, gate, z->key_dim, padded);                                                          \
        for (int64_t x = 0; x < z->key_dim; x++) decay[x] += bias[x];                                              \
        for (int64_t x = 0; x < padded; x += VL)                                                                   \
            vf_store(decay + x, vf_exp(vf_softplus(vf_load(decay + x)) * rate));                                   \
    }                                                                                                              \
                                                                                                                   \
    /* Up to ROWS rows of a sequence and head, from the state `from` (NULL: zeros); returns where the state is. */ \
    static const float *run_rows_##T(const delta_sizes *z, const T *qkv, const T *a, const T *b, T *out,           \
                                     float *states, const float *from, const int32_t *kept, int all, int64_t head, \
                                     int64_t rows, int64_t rows_after, float *carried) {                           \
        int64_t padded = (z->key_dim + VL - 1) / VL * VL, gates = z->heads * z->gates_of_head;                     \
        int64_t keys = z->key_heads * z->key_dim, channels = 2 * keys + z->heads * z->value_dim;                   \
        float q[ROWS * padded], k[ROWS * padded], decay[ROWS * padded], beta[ROWS];                                \
        float state[padded * COLUMNS], v[COLUMNS], read[COLUMNS];                                                  \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            prepare_##T(z, qkv + row * channels, a + row * gates, head, padded, q + row * padded,                  \
                        k + row * padded, decay + row * padded);                                                   \
            beta[row] = sigmoid(T##_to_float(b[row * z->heads + head]));                                           \
        }                                                                                                          \
        memset(state, 0, sizeof state);                                                                            \
        for (int64_t at = 0; at < z->value_dim; at += COLUMNS) {                                                   \
            int64_t columns = z->value_dim - at < COLUMNS ? z->value_dim - at : COLUMNS;                           \
            for (int64_t x = 0; x < z->key_dim; x++) {                                                             \
                if (from) memcpy(state + x * COLUMNS, from + x * z->value_dim + at, columns * sizeof(float));      \
                else memset(state + x * COLUMNS, 0, columns * sizeof(float));                                      \
            }                                                                                                      \
            for (int64_t row = 0; row < rows; row++) {                                                             \
                load_floats_##T(v, qkv + row * channels + 2 * keys + head * z->value_dim + at, columns, COLUMNS);  \
                step(state, q + row * padded, k + row * padded, decay + row * padded, v, beta[row], read, padded); \
                T *to = out + (row * z->heads + head) * z->value_dim + at;                                         \
                for (int64_t i = 0; i < columns; i++) to[i] = float_to_##T(read[i]);                               \
                int64_t left = rows_after + rows - row; /* this row and those behind it */                         \
                int32_t slot = left == 1 || all ? kept[z->num_kept - left] : -1;                                   \
                float *keep = slot < 0 ? NULL : states + slot * z->stride + head * z->key_dim * z->value_dim;      \
                if (left > 1 && row == rows - 1) keep = carried;                                                   \
                if (keep)                                                                                          \
                    for (int64_t x = 0; x < z->key_dim; x++)                                                       \
                        memcpy(keep + x * z->value_dim + at, state + x * COLUMNS, columns * sizeof(float));        \
            }                                                                                                      \
        }                                                                                                          \
        return carried;                                                                                            \
    }                                                                                                              \
                                                                                                                   \
    void gated_delta_##T(const T *qkv, const T *a, const T *b, T *out, float *states, const int32_t *slots,        \
                         const int32_t *kept, const int32_t *starts, const int32_t *lengths, const float *rates,   \
                         const float *bias, int64_t num_rows, int64_t num_sequences, int64_t num_kept,             \
                         int64_t key_heads, int64_t heads, int64_t key_dim, int64_t value_dim,                     \
                         int64_t gates_of_head, int64_t stride) {                                                  \
        const delta_sizes z = {key_heads, heads, key_dim, value_dim, gates_of_head, num_kept, stride, rates, bias}; \
        int64_t channels = 2 * key_heads * key_dim + heads * value_dim, gates = heads * gates_of_head;             \
        int64_t width = heads * value_dim, size = key_dim * value_dim;                                             \
        _Pragma("omp parallel for collapse(2) schedule(dynamic)")                                                  \
        for (int64_t s = 0; s < num_sequences; s++)                                                                \
            for (int64_t head = 0; head < heads; head++) {                                                         \
                int64_t first = starts[s], end = starts[s + 1];                                                    \
                if (slots[s] < 0) {                                                                                \
                    for (int64_t row = first; row < end; row++)                                                    \
                        memset(out + row * width + head * value_dim, 0, value_dim * sizeof(T));                    \
                    continue;                                                                                      \
                }                                                                                                  \
                float carried[end - first > ROWS ? size : 1];                                                      \
                const float *from = states + slots[s] * stride + head * size;                                      \
                if (lengths[s] == end - first) from = NULL;                                                        \
                const int32_t *columns = kept + s * num_kept;                                                      \
                int all = end - first <= num_kept; /* states are kept, not the last alone */                       \
                for (int64_t row = first; row < end; row += ROWS) {                                                \
                    int64_t rows = end - row < ROWS ? end - row : ROWS, after = end - row - rows;                  \
                    from = run_rows_##T(&z, qkv + row * channels, a + row * gates, b + row * heads,                \
                                        out + row * width, states, from, columns, all, head, rows, after, carried); \
                }                                                                                                  \
            }                                                                                                      \
        int64_t end = starts[num_sequences];                                                                       \
        memset(out, 0, starts[0] * width * sizeof(T));                                                             \
        memset(out + end * width, 0, (num_rows - end) * width * sizeof(T));                                        \
    }

DEFINE_GATED_DELTA(bf16)
DEFINE_GATED_DELTA(f32)
