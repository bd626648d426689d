/* What low-rank adapters add to the outputs of a linear that is there already, for `atom_kernels.adapters`. */
#include "low_rank.h"

/* Fewer products take one core less time than another thread takes to begin. */
#define PARALLEL_PRODUCTS 16384

#define DEFINE_ADD_LOW_RANK(T, Y)                                                                                  \
    void add_low_rank_##T##_##Y(Y *y, const T *x, const int64_t *places, int64_t tokens, int64_t y_stride,         \
                                int64_t x_stride, const T *a, const T *b, const int64_t *ends, int64_t num_places, \
                                int64_t inputs, int64_t rank, int64_t parts) {                                     \
        const low_rank_t term = {places, a, b, ends, tokens, num_places, inputs, rank, parts};                     \
        float inner[tokens * parts * rank];                                                                        \
        _Pragma("omp parallel if (tokens * rank * (parts * inputs + ends[parts - 1]) > PARALLEL_PRODUCTS)") {      \
            shrink_share_##T(&term, x, x_stride, inner);                                                           \
            _Pragma("omp barrier");                                                                                \
            expand_share_##T##_##Y(&term, inner, y, y_stride);                                                     \
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
