/* What low-rank adapters add to the outputs of a linear that is there already, for `atom_kernels.adapters`. */
#include "low_rank.h"

/* Fewer products take one core less time than another thread takes to begin. */
#define PARALLEL_PRODUCTS 16384
#define ALIGNED 32 /* outputs: threads write to cache lines of their own */

#define DEFINE_ADD_LOW_RANK(T, Y)                                                                                  \
    void add_low_rank_##T##_##Y(Y *y, const T *x, const int64_t *places, int64_t tokens, int64_t y_stride,         \
                                int64_t x_stride, const matrices_t *of) {                                          \
        const int64_t outputs = of->ends[of->parts - 1], pieces = (outputs + ALIGNED - 1) / ALIGNED;               \
        const int64_t products = tokens * of->rank * (of->parts * of->inputs + outputs);                           \
        float inner[tokens * of->parts * of->rank];                                                                \
        _Pragma("omp parallel if (products > PARALLEL_PRODUCTS)") {                                                \
            int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();                                \
            int64_t from = pieces * thread / threads * ALIGNED, to = pieces * (thread + 1) / threads * ALIGNED;    \
            shrink_share_##T(of, places, tokens, x, x_stride, inner);                                              \
            _Pragma("omp barrier");                                                                                \
            expand_share_##T##_##Y(of, places, tokens, inner, y, y_stride, from, to < outputs ? to : outputs);     \
        }                                                                                                          \
    }

DEFINE_SHRINK(f32)
DEFINE_EXPAND(f32, f32)
DEFINE_ADD_LOW_RANK(f32, f32)
DEFINE_SHRINK(bf16)
DEFINE_EXPAND(bf16, bf16)
DEFINE_ADD_LOW_RANK(bf16, bf16)
DEFINE_EXPAND(bf16, f32)
DEFINE_ADD_LOW_RANK(bf16, f32)
