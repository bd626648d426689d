/* What low-rank adapters add to the outputs of a linear, for `atom_kernels.adapters`: float32 inside.
 *
 * A thread does both products of a token and a part, so that threads wait for each other once a call. Few streams alone
 * do not keep the memory busy: rows are asked for before they are needed. */
#include "vector.h"

#define ROWS 8 /* of A at a time: as many sums as a multiplier has steps */
#define RANKS 4 /* rows of B at a time */
#define OUTPUTS 1024 /* of a run: their sums stay in the L1 */
/* Fewer products take one core less time than another thread takes to begin. */
#define PARALLEL_PRODUCTS 16384

/* inner = A x, and y += B inner for `size` outputs. Rows of A past the last one repeat it. */
#define DEFINE_SHRINK(T)                                                                                           \
    static void shrink_##T(const T *a, const T *x, int64_t rank, int64_t inputs, float *inner) {                   \
        for (int64_t first = 0; first < rank; first += ROWS) {                                                     \
            int64_t count = rank - first < ROWS ? rank - first : ROWS, i = 0;                                      \
            const T *rows[ROWS];                                                                                   \
            vf sums[ROWS];                                                                                         \
            for (int r = 0; r < ROWS; r++) {                                                                       \
                rows[r] = a + (first + (r < count ? r : count - 1)) * inputs;                                      \
                sums[r] = vf_set(0.0f);                                                                            \
            }                                                                                                      \
            for (; i + VL <= inputs; i += VL) {                                                                    \
                vf of_x = vf_load_##T(x + i);                                                                      \
                for (int r = 0; r < ROWS; r++) {                                                                   \
                    __builtin_prefetch(rows[r] + i + ROWS * inputs);                                               \
                    sums[r] += vf_load_##T(rows[r] + i) * of_x;                                                    \
                }                                                                                                  \
            }                                                                                                      \
            for (int64_t r = 0; r < count; r++) {                                                                  \
                float sum = vf_hsum(sums[r]);                                                                      \
                for (int64_t j = i; j < inputs; j++) sum += T##_to_float(rows[r][j]) * T##_to_float(x[j]);         \
                inner[first + r] = sum;                                                                            \
            }                                                                                                      \
        }                                                                                                          \
    }

#define DEFINE_EXPAND(T, Y)                                                                                        \
    static void expand_##T##_##Y(const float *inner, const T *b, int64_t rank, int64_t stride, int64_t size, Y *y) { \
        float sums[OUTPUTS] = {0};                                                                                 \
        int64_t i = 0, r = 0;                                                                                      \
        for (; r + RANKS <= rank; r += RANKS) {                                                                    \
            const T *rows = b + r * stride;                                                                        \
            for (i = 0; i + VL <= size; i += VL) {                                                                 \
                vf sum = vf_load(sums + i);                                                                        \
                for (int k = 0; k < RANKS; k++) {                                                                  \
                    __builtin_prefetch(rows + i + (k + RANKS) * stride);                                           \
                    sum += inner[r + k] * vf_load_##T(rows + i + k * stride);                                      \
                }                                                                                                  \
                vf_store(sums + i, sum);                                                                           \
            }                                                                                                      \
            for (; i < size; i++)                                                                                  \
                for (int k = 0; k < RANKS; k++) sums[i] += inner[r + k] * T##_to_float(rows[i + k * stride]);      \
        }                                                                                                          \
        for (; r < rank; r++)                                                                                      \
            for (i = 0; i < size; i++) sums[i] += inner[r] * T##_to_float(b[r * stride + i]);                      \
        for (i = 0; i + VL <= size; i += VL) vf_store_##Y(y + i, vf_load_##Y(y + i) + vf_load(sums + i));          \
        for (; i < size; i++) y[i] = float_to_##Y(Y##_to_float(y[i]) + sums[i]);                                   \
    }

/* a is [num_places][parts * rank][inputs], b is [num_places][rank][outputs]. Part p has the outputs up to ends[p]. */
#define DEFINE_ADD_LOW_RANK(T, Y)                                                                                  \
    DEFINE_EXPAND(T, Y)                                                                                            \
                                                                                                                   \
    void add_low_rank_##T##_##Y(Y *y, const T *x, const int64_t *places, int64_t tokens, int64_t y_stride,         \
                                int64_t x_stride, const T *a, const T *b, const int64_t *ends, int64_t num_places, \
                                int64_t inputs, int64_t rank, int64_t parts) {                                     \
        int64_t outputs = ends[parts - 1];                                                                         \
        _Pragma("omp parallel for collapse(2) schedule(static)                                                     \
                 if (tokens * rank * (parts * inputs + outputs) > PARALLEL_PRODUCTS)")                             \
        for (int64_t t = 0; t < tokens; t++)                                                                       \
            for (int64_t p = 0; p < parts; p++) {                                                                  \
                if (places[t] < 1 || places[t] > num_places) continue;                                             \
                float inner[rank];                                                                                 \
                int64_t place = places[t] - 1, end = ends[p];                                                      \
                shrink_##T(a + (place * parts + p) * rank * inputs, x + t * x_stride, rank, inputs, inner);        \
                for (int64_t at = p ? ends[p - 1] : 0; at < end; at += OUTPUTS)                                    \
                    expand_##T##_##Y(inner, b + place * rank * outputs + at, rank, outputs,                        \
                                     end - at < OUTPUTS ? end - at : OUTPUTS, y + t * y_stride + at);              \
            }                                                                                                      \
    }

DEFINE_SHRINK(f32)
DEFINE_SHRINK(bf16)
DEFINE_ADD_LOW_RANK(f32, f32)
DEFINE_ADD_LOW_RANK(bf16, bf16)
DEFINE_ADD_LOW_RANK(bf16, f32)
