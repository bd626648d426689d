/* Dense linears, for `atom_kernels.linear`: alone, and with what low-rank adapters add to their outputs.
 *
 * With adapters it is one team of threads: each does its share of A x and of the linear, and adds its share of B (A x)
 * once both are there. The result has the bits of `linear` and then `low_rank.c`. */
#include "linear.h"
#include "low_rank.h"

#define DEFINE_ADAPTED_LINEAR(T, OUT, NAME)                                                                        \
    void adapted_linear_##NAME(const T *x, const T *weight, const T *bias, OUT *out, int64_t m_size, int64_t k_size, \
                               int64_t n_size, const int64_t *places, const T *a, const T *b, const int64_t *ends, \
                               int64_t num_places, int64_t rank, int64_t parts) {                                  \
        const low_rank_t term = {places, a, b, ends, m_size, num_places, k_size, rank, parts};                     \
        float inner[m_size * parts * rank];                                                                        \
        _Pragma("omp parallel if (n_size * k_size > PARALLEL_ELEMENTS)") {                                         \
            int64_t from, to;                                                                                      \
            outputs_of_thread(n_size, &from, &to);                                                                 \
            shrink_share_##T(&term, x, k_size, inner);                                                             \
            outputs_##NAME(x, weight, bias, out, from, to, m_size, k_size, n_size);                                \
            _Pragma("omp barrier");                                                                                \
            expand_share_##T##_##OUT(&term, inner, out, n_size);                                                   \
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
