/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] with weights of eight or four bits and scales; x in bfloat16, sums in float32;
 * out in float32, and in bfloat16 where it is asked for. See `packed_lanes.h` for how the weight lies. */
#include "linear.h"
#include "low_rank.h"
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include "packed_lanes_products.h"

DEFINE_SHRINK(bf16)
DEFINE_EXPAND(bf16, f32)

/* Outputs [from, to). */
static int64_t outputs_lanes(int64_t kind, const lanes_t *weights, const rows_t *rows, int64_t from, int64_t to,
                             ahead_t *meanwhile) {
    return multiply_blocks((int)kind, weights, rows, from / VL, (to + VL - 1) / VL, meanwhile);
}

/* Returns whether there was memory. `rounded` has the results in the place of out, which is memory for them; or null. */
int64_t linear_packed_lanes(int64_t kind, const bf16 *x, const uint8_t *codes, const void *scale, const void *minimum,
                            int64_t narrow, const bf16 *bias, float *out, bf16 *rounded, int64_t m_size, int64_t k_size,
                            int64_t n_size, int64_t group) {
    const lanes_t weights = {codes, scale, minimum, narrow, k_size, group};
    const rows_t rows = {x, bias, out, rounded, 0, m_size, n_size};
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        ahead_t nothing = {0};
        outputs_of_thread(n_size, &from, &to);
        failed |= !outputs_lanes(kind, &weights, &rows, from, to, &nothing);
    }
    return !failed;
}

/* The same, and what low-rank adapters add, as in `linear.c`. Few rows are decoded as they are multiplied, and meanwhile a
 * thread has the matrices of the adapters brought into its caches. */
int64_t adapted_linear_packed_lanes(int64_t kind, const bf16 *x, const uint8_t *codes, const void *scale,
                                    const void *minimum, int64_t narrow, const bf16 *bias, float *out, bf16 *rounded,
                                    int64_t m_size, int64_t k_size, int64_t n_size, int64_t group, const int64_t *places,
                                    const matrices_t *of) {
    float inner[m_size * of->parts * of->rank];
    const lanes_t weights = {codes, scale, minimum, narrow, k_size, group};
    const rows_t rows = {x, bias, out, 0, 0, m_size, n_size};
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        outputs_of_thread(n_size, &from, &to);
        const int few = m_size <= FEW_ROWS;
        run_t runs[few ? 2 * m_size : 1];
        const int64_t count = few ? runs_of_thread(of, places, m_size, sizeof(bf16), from, to, runs) : 0;
        ahead_t meanwhile = {.run = runs, .last = runs + count};
        failed |= !outputs_lanes(kind, &weights, &rows, from, to, &meanwhile);
        shrink_share_bf16(of, places, m_size, x, k_size, inner);
#pragma omp barrier
        expand_share_bf16_f32(of, places, m_size, inner, out, n_size, from, to);
        round_share(out, rounded, m_size, n_size, from, to);
    }
    return !failed;
}
#endif
