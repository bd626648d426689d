/* Dense linears, for `atom_kernels.linear`: alone, and with what low-rank adapters add to their outputs.
 *
 * With adapters it is one team of threads: each does its share of A x, then its outputs of the linear, and adds
 * B (A x) to these once all of A x is there. The result has the bits of `linear` and then `low_rank.c`. */
#include "linear.h"
#include "low_rank.h"

#define DEFINE_ADAPTED_LINEAR(T, OUT, NAME)                                                                        \
    void adapted_linear_##NAME(const T *x, const T *weight, const T *bias, OUT *out, int64_t m_size, int64_t k_size, \
                               int64_t n_size, const int64_t *places, const matrices_t *of) {                      \
        float inner[m_size * of->parts * of->rank];                                                                \
        _Pragma("omp parallel if (n_size * k_size > PARALLEL_ELEMENTS)") {                                         \
            int64_t from, to;                                                                                      \
            outputs_of_thread(n_size, &from, &to);                                                                 \
            shrink_share_##T(of, places, m_size, x, k_size, inner);                                                \
            outputs_##NAME(x, weight, bias, out, from, to, m_size, k_size, n_size);                                \
            _Pragma("omp barrier");                                                                                \
            expand_share_##T##_##OUT(of, places, m_size, inner, out, n_size, from, to);                            \
        }                                                                                                          \
    }

DEFINE_SHRINK(f32)
DEFINE_EXPAND(f32, f32)
DEFINE_ADAPTED_LINEAR(f32, f32, f32)
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
DEFINE_SHRINK(bf16)
DEFINE_EXPAND(bf16, bf16)
DEFINE_ADAPTED_LINEAR(bf16, bf16, bf16)
DEFINE_EXPAND(bf16, f32)
DEFINE_ADAPTED_LINEAR(bf16, f32, bf16_f32)
#endif
