/* RMS norm, and residual add + RMS norm, over rows of bfloat16 or float32; float32 inside. */
#include "vector.h"

/* Below this many elements a second thread costs more than it gives. */
#define PARALLEL_ELEMENTS 32768

INLINE float f32_to_float(float x) { return x; }
INLINE float float_to_f32(float x) { return x; }
INLINE vf vf_load_f32(const float *p) { return vf_load(p); }
INLINE void vf_store_f32(float *p, vf x) { vf_store(p, x); }
typedef float f32;

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

DEFINE_NORMS(bf16)
DEFINE_NORMS(f32)
