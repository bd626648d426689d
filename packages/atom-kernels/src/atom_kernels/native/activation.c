/* silu(gate) * up over rows [gate, up] of bfloat16 or float32; float32 inside. */
#include "silu.h"

#define PARALLEL_ELEMENTS 8192

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
