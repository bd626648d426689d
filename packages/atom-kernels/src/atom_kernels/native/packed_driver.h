/* The linear over packed weights for one element type; include once for each, after its NAME(decode), NAME(multiply_packed),
 * NAME(max_few_rows) and LINEAR, as `packed_tile.h` has them. */

/* Returns whether there was memory for the panels. */
int64_t NAME(linear_quantized)(int64_t kind, const T *x, const uint8_t *codes, const float *scale, const float *minimum,
                               const uint8_t *zero, const T *bias, float *out, int64_t m_size, int64_t k_size,
                               int64_t n_size, int64_t group) {
    const weights_t weights = {codes, scale, minimum, zero, k_size, group};
    int64_t rows = PANEL_BYTES / ((int64_t)sizeof(T) * k_size) / TILE * TILE;
    rows = rows < TILE ? TILE : rows > PANEL_ROWS ? PANEL_ROWS : rows;
    const int few = m_size <= NAME(max_few_rows);
    const int64_t tiles = n_size / TILE, left = n_size - tiles * TILE;
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t first = tiles * thread / threads * TILE, last = tiles * (thread + 1) / threads * TILE;
        T *panel = panel_of_thread((few ? TILE : rows) * k_size * (int64_t)sizeof(T));
        failed |= !panel;
        if (few) NAME(multiply_packed)((int)kind, &weights, x, bias, out, m_size, first, last, n_size);
        for (int64_t from = first; !few && panel && from < last; from += rows) {
            int64_t to = from + rows < last ? from + rows : last;
            NAME(decode)((int)kind, &weights, from, to, panel);
            LINEAR(panel)(x, panel - from * k_size, bias, out, from, to, m_size, k_size, n_size);
        }
        if (panel && left && thread == threads - 1) {
            const int64_t from = tiles * TILE;
            NAME(decode)((int)kind, &weights, from, n_size, panel);
            for (int64_t m = 0; m < m_size; m++)
                for (int64_t n = 0; n < left; n++)
                    out[m * n_size + from + n] =
                        LINEAR(single)(x + m * k_size, panel + n * k_size, bias ? bias + from + n : 0, k_size);
        }
    }
    return !failed;
}
