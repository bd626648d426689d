/* What low-rank adapters add to the outputs of a linear, for `atom_kernels.adapters`: float32 inside. */
#include "vector.h"

#define ROWS 8 /* of A, of a task */
#define OUTPUTS 1024 /* of a task */
#define PARALLEL_PRODUCTS 16384

/* Rows of B are added two at a time to the sums of a run of outputs, and those to y at the end. */
#define DEFINE_PARTS(T)                                                                                            \
    static float dot_##T(const T *a, const T *x, int64_t size) {                                                   \
        vf sums[4] = {vf_set(0.0f), vf_set(0.0f), vf_set(0.0f), vf_set(0.0f)};                                     \
        int64_t i = 0;                                                                                             \
        for (; i + 4 * VL <= size; i += 4 * VL)                                                                    \
            for (int j = 0; j < 4; j++) sums[j] += vf_load_##T(a + i + j * VL) * vf_load_##T(x + i + j * VL);      \
        for (; i + VL <= size; i += VL) sums[0] += vf_load_##T(a + i) * vf_load_##T(x + i);                        \
        float sum = vf_hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));                                            \
        for (; i < size; i++) sum += T##_to_float(a[i]) * T##_to_float(x[i]);                                      \
        return sum;                                                                                                \
    }                                                                                                              \
                                                                                                                   \
    static void expand_##T(const float *inner, const T *b, int64_t rank, int64_t stride, int64_t size,             \
                           float *sums) {                                                                          \
        memset(sums, 0, (size_t)size * sizeof *sums);                                                              \
        for (int64_t r = 0; r < rank; r += 2) {                                                                    \
            const T *one = b + r * stride, *other = r + 1 < rank ? one + stride : one;                             \
            float of_one = inner[r], of_other = r + 1 < rank ? inner[r + 1] : 0.0f;                                \
            int64_t i = 0;                                                                                         \
            for (; i + VL <= size; i += VL)                                                                        \
                vf_store(sums + i,                                                                                 \
                         vf_load(sums + i) + of_one * vf_load_##T(one + i) + of_other * vf_load_##T(other + i));   \
            for (; i < size; i++) sums[i] += of_one * T##_to_float(one[i]) + of_other * T##_to_float(other[i]);    \
        }                                                                                                          \
    }

/* a is [num_places][parts * rank][inputs], b is [num_places][rank][outputs], inner [tokens][parts * rank]. Part p has
 * the outputs up to ends[p]. */
#define DEFINE_ADD_LOW_RANK(T, Y)                                                                                  \
    void add_low_rank_##T##_##Y(Y *y, const T *x, const int64_t *places, int64_t tokens, int64_t y_stride,         \
                                int64_t x_stride, float *inner, const T *a, const T *b, const int64_t *ends,       \
                                int64_t num_places, int64_t inputs, int64_t rank, int64_t parts) {                 \
        int64_t rows = parts * rank, outputs = ends[parts - 1];                                                    \
        _Pragma("omp parallel if (tokens * rank * (parts * inputs + outputs) > PARALLEL_PRODUCTS)")                \
        {                                                                                                          \
            _Pragma("omp for collapse(2) schedule(static)")                                                        \
            for (int64_t t = 0; t < tokens; t++)                                                                   \
                for (int64_t first = 0; first < rows; first += ROWS) {                                             \
                    if (places[t] < 1 || places[t] > num_places) continue;                                         \
                    const T *own = a + (places[t] - 1) * rows * inputs;                                            \
                    for (int64_t r = first; r < rows && r < first + ROWS; r++)                                     \
                        inner[t * rows + r] = dot_##T(own + r * inputs, x + t * x_stride, inputs);                 \
                }                                                                                                  \
            _Pragma("omp for collapse(2) schedule(static)")                                                        \
            for (int64_t t = 0; t < tokens; t++)                                                                   \
                for (int64_t first = 0; first < outputs; first += OUTPUTS) {                                       \
                    if (places[t] < 1 || places[t] > num_places) continue;                                         \
                    const T *own = b + (places[t] - 1) * rank * outputs;                                           \
                    int64_t last = first + OUTPUTS < outputs ? first + OUTPUTS : outputs, at = first;              \
                    for (int64_t p = 0; p < parts; p++) {                                                          \
                        float sums[OUTPUTS];                                                                       \
                        int64_t size = (ends[p] < last ? ends[p] : last) - at;                                     \
                        if (size <= 0) continue;                                                                   \
                        expand_##T(inner + t * rows + p * rank, own + at, rank, outputs, size, sums);              \
                        Y *to = y + t * y_stride + at;                                                             \
                        int64_t i = 0;                                                                             \
                        for (; i + VL <= size; i += VL)                                                            \
                            vf_store_##Y(to + i, vf_load_##Y(to + i) + vf_load(sums + i));                         \
                        for (; i < size; i++) to[i] = float_to_##Y(Y##_to_float(to[i]) + sums[i]);                 \
                        at += size;                                                                                \
                    }                                                                                              \
                }                                                                                                  \
        }                                                                                                          \
    }

DEFINE_PARTS(f32)
DEFINE_PARTS(bf16)
DEFINE_ADD_LOW_RANK(f32, f32)
DEFINE_ADD_LOW_RANK(bf16, bf16)
DEFINE_ADD_LOW_RANK(bf16, f32)
