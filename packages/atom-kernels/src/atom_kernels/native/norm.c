/* RMS norm, residual add + RMS norm, and layer norm, over rows of bfloat16 or float32; float32 inside. */
#include "vector.h"

/* Below this many elements a second thread costs more than it gives. */
#define PARALLEL_ELEMENTS 32768

#define DEFINE_NORMS(T)                                                                                            \
    INLINE void norm_row_##T(const T *x, const T *weight, T *out, int64_t size, float eps, float offset,           \
                             float sum_of_squares) {                                                               \
        float scale = 1.0f / sqrtf(sum_of_squares / (float)size + eps);                                            \
        int64_t i = 0;                                                                                             \
        for (; i + VL <= size; i += VL)                                                                            \
            vf_store_##T(out + i, vf_load_##T(x + i) * scale * (vf_load_##T(weight + i) + offset));                \
        for (; i < size; i++) out[i] = float_to_##T(T##_to_float(x[i]) * scale * (T##_to_float(weight[i]) + offset)); \
    }                                                                                                              \
                                                                                                                   \
    void rms_norm_##T(const T *x, const T *weight, T *out, int64_t rows, int64_t size, float eps, float offset) {  \
        _Pragma("omp parallel for schedule(static) if (rows > 1 && rows * size > PARALLEL_ELEMENTS)")              \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            const T *from = x + row * size;                                                                        \
            vf squares = vf_set(0.0f);                                                                             \
            int64_t i = 0;                                                                                         \
            for (; i + VL <= size; i += VL) {                                                                      \
                vf v = vf_load_##T(from + i);                                                                      \
                squares += v * v;                                                                                  \
            }                                                                                                      \
            float sum = vf_hsum(squares);                                                                          \
            for (; i < size; i++) sum += T##_to_float(from[i]) * T##_to_float(from[i]);                            \
            norm_row_##T(from, weight, out + row * size, size, eps, offset, sum);                                  \
        }                                                                                                          \
    }                                                                                                              \
                                                                                                                   \
    void add_rms_norm_##T(const T *x, const T *residual, const T *weight, T *normed, T *total, int64_t rows,       \
                          int64_t size, float eps, float offset) {                                                 \
        _Pragma("omp parallel for schedule(static) if (rows > 1 && rows * size > PARALLEL_ELEMENTS)")              \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            const T *left = x + row * size, *right = residual + row * size;                                        \
            T *sums = total + row * size;                                                                          \
            vf squares = vf_set(0.0f);                                                                             \
            int64_t i = 0;                                                                                         \
            for (; i + VL <= size; i += VL) {                                                                      \
                vf_store_##T(sums + i, vf_load_##T(left + i) + vf_load_##T(right + i));                            \
                vf v = vf_load_##T(sums + i);                                                                      \
                squares += v * v;                                                                                  \
            }                                                                                                      \
            float sum = vf_hsum(squares);                                                                          \
            for (; i < size; i++) {                                                                                \
                sums[i] = float_to_##T(T##_to_float(left[i]) + T##_to_float(right[i]));                            \
                sum += T##_to_float(sums[i]) * T##_to_float(sums[i]);                                              \
            }                                                                                                      \
            norm_row_##T(sums, weight, normed + row * size, size, eps, offset, sum);                               \
        }                                                                                                          \
    }

/* Deviations are taken from the mean, as the contract has them, and not from a difference of two large sums. Two sums
   at a time: each addition waits for the one before. */
#define DEFINE_LAYER_NORM(T)                                                                                       \
    INLINE float sum_##T(const T *x, int64_t size) {                                                               \
        vf even = vf_set(0.0f), odd = vf_set(0.0f);                                                                \
        int64_t i = 0;                                                                                             \
        for (; i + 2 * VL <= size; i += 2 * VL) {                                                                  \
            even += vf_load_##T(x + i);                                                                            \
            odd += vf_load_##T(x + i + VL);                                                                        \
        }                                                                                                          \
        float sum = vf_hsum(even + odd);                                                                           \
        for (; i < size; i++) sum += T##_to_float(x[i]);                                                           \
        return sum;                                                                                                \
    }                                                                                                              \
                                                                                                                   \
    INLINE float sum_of_deviations_##T(const T *x, int64_t size, float mean) {                                     \
        vf even = vf_set(0.0f), odd = vf_set(0.0f);                                                                \
        int64_t i = 0;                                                                                             \
        for (; i + 2 * VL <= size; i += 2 * VL) {                                                                  \
            vf left = vf_load_##T(x + i) - mean, right = vf_load_##T(x + i + VL) - mean;                           \
            even += left * left;                                                                                   \
            odd += right * right;                                                                                  \
        }                                                                                                          \
        float sum = vf_hsum(even + odd);                                                                           \
        for (; i < size; i++) sum += (T##_to_float(x[i]) - mean) * (T##_to_float(x[i]) - mean);                    \
        return sum;                                                                                                \
    }                                                                                                              \
                                                                                                                   \
    /* `bias` may be NULL. */                                                                                      \
    void layer_norm_##T(const T *x, const float *weight, const float *bias, T *out, int64_t rows, int64_t size,    \
                        float eps) {                                                                               \
        _Pragma("omp parallel for schedule(static) if (rows > 1 && rows * size > PARALLEL_ELEMENTS)")              \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            const T *from = x + row * size;                                                                        \
            T *to = out + row * size;                                                                              \
            float mean = sum_##T(from, size) / (float)size;                                                        \
            float scale = 1.0f / sqrtf(sum_of_deviations_##T(from, size, mean) / (float)size + eps);               \
            int64_t i = 0;                                                                                         \
            for (; i + VL <= size; i += VL) {                                                                      \
                vf v = (vf_load_##T(from + i) - mean) * scale * vf_load(weight + i);                               \
                if (bias) v += vf_load(bias + i);                                                                  \
                vf_store_##T(to + i, v);                                                                           \
            }                                                                                                      \
            for (; i < size; i++) {                                                                                \
                float v = (T##_to_float(from[i]) - mean) * scale * weight[i];                                      \
                to[i] = float_to_##T(bias ? v + bias[i] : v);                                                      \
            }                                                                                                      \
        }                                                                                                          \
    }

DEFINE_NORMS(bf16)
DEFINE_NORMS(f32)
DEFINE_LAYER_NORM(bf16)
DEFINE_LAYER_NORM(f32)
