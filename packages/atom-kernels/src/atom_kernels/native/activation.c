/* silu(gate) * up over rows [gate, up] of bfloat16 or float32; float32 inside. */
#include "vector.h"

#define PARALLEL_ELEMENTS 8192

INLINE float f32_to_float(float x) { return x; }
INLINE float float_to_f32(float x) { return x; }
INLINE vf vf_load_f32(const float *p) { return vf_load(p); }
INLINE void vf_store_f32(float *p, vf x) { vf_store(p, x); }
typedef float f32;

/* x / (1 + exp(-x)); where exp overflows, 1/inf gives the limit 0 (and x itself below, not NaN: x * 0). */
INLINE vf vf_silu(vf x) {
    vf magnitude = vf_select(x < 0.0f, -x, x);
    vf decay = vf_exp(-magnitude);
    /* sigmoid(|x|) and sigmoid(-|x|) share a denominator, and exp never overflows. */
    vf numerator = vf_select(x < 0.0f, decay, vf_set(1.0f));
    return x * numerator / (decay + 1.0f);
}

#define DEFINE_SILU_AND_MUL(T)                                                                                     \
    void silu_and_mul_##T(const T *x, T *out, int64_t rows, int64_t size) {                                        \
        _Pragma("omp parallel for schedule(static) if (rows > 1 && rows * size > PARALLEL_ELEMENTS)")              \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            const T *gate = x + 2 * row * size, *up = gate + size;                                                 \
            T *to = out + row * size;                                                                              \
            int64_t i = 0;                                                                                         \
            for (; i + VL <= size; i += VL)                                                                        \
                vf_store_##T(to + i, vf_silu(vf_load_##T(gate + i)) * vf_load_##T(up + i));                        \
            for (; i < size; i++)                                                                                  \
                to[i] = float_to_##T(vf_silu(vf_set(T##_to_float(gate[i])))[0] * T##_to_float(up[i]));             \
        }                                                                                                          \
    }

DEFINE_SILU_AND_MUL(bf16)
DEFINE_SILU_AND_MUL(f32)
