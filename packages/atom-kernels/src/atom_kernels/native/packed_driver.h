/* The linear over packed weights for one element type; include once for each, after its NAME(decode), NAME(multiply_packed),
 * NAME(max_few_rows) and LINEAR, as `packed_tile.h` has them, and EXPAND_SHARE, that of `low_rank.h` for them. */

/* A thread's outputs [from, to), the first a multiple of TILE. Returns whether there was memory for a panel. */
static int64_t NAME(outputs_quantized)(int kind, const weights_t *weights, const T *x, const T *bias, float *out,
                                       int64_t m_size, int64_t n_size, int64_t from, int64_t to) {
    const int64_t k_size = weights->k_size, tiled = to / TILE * TILE;
    int64_t rows = PANEL_BYTES / ((int64_t)sizeof(T) * k_size) / TILE * TILE;
    rows = rows < TILE ? TILE : rows > PANEL_ROWS ? PANEL_ROWS : rows;
    const int few = m_size <= NAME(max_few_rows);
    T *panel = panel_of_thread((few ? TILE : rows) * k_size * (int64_t)sizeof(T));
    if (!panel) return 0;
    if (few) NAME(multiply_packed)(kind, weights, x, bias, out, m_size, from, tiled, n_size);
    for (; !few && from < tiled; from += rows) {
        int64_t end = from + rows < tiled ? from + rows : tiled;
        NAME(decode)(kind, weights, from, end, panel);
        LINEAR(panel)(x, panel - from * k_size, bias, out, from, end, m_size, k_size, n_size, 0);
    }
    if (tiled < to) {
        NAME(decode)(kind, weights, tiled, to, panel);
        for (int64_t m = 0; m < m_size; m++)
            for (int64_t n = tiled; n < to; n++)
                out[m * n_size + n] =
                    LINEAR(single)(x + m * k_size, panel + (n - tiled) * k_size, bias ? bias + n : 0, k_size);
    }
    return 1;
}

/* Returns whether there was memory for the panels. `rounded`: out in bfloat16 too; or null. */
int64_t NAME(linear_quantized)(int64_t kind, const T *x, const uint8_t *codes, const float *scale, const float *minimum,
                               const uint8_t *zero, const T *bias, float *out, bf16 *rounded, int64_t m_size,
                               int64_t k_size, int64_t n_size, int64_t group) {
    const weights_t weights = {codes, scale, minimum, zero, k_size, group};
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        outputs_of_thread(n_size, &from, &to);
        failed |= !NAME(outputs_quantized)((int)kind, &weights, x, bias, out, m_size, n_size, from, to);
        round_share(out, rounded, m_size, n_size, from, to);
    }
    return !failed;
}

/* The same, and what low-rank adapters add, as in `linear.c`. */
int64_t NAME(adapted_linear_quantized)(int64_t kind, const T *x, const uint8_t *codes, const float *scale,
                                       const float *minimum, const uint8_t *zero, const T *bias, float *out,
                                       bf16 *rounded, int64_t m_size, int64_t k_size, int64_t n_size, int64_t group,
                                       const int64_t *places, const matrices_t *of) {
    const weights_t weights = {codes, scale, minimum, zero, k_size, group};
    float inner[m_size * of->parts * of->rank];
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        outputs_of_thread(n_size, &from, &to);
        failed |= !NAME(outputs_quantized)((int)kind, &weights, x, bias, out, m_size, n_size, from, to);
        NAME(shrink_share)(of, places, m_size, x, k_size, inner);
#pragma omp barrier
        EXPAND_SHARE(of, places, m_size, inner, out, n_size, from, to);
        round_share(out, rounded, m_size, n_size, from, to);
    }
    return !failed;
}
