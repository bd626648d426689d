/* The experts for one kind of matrices; include once for each, after moe_rows.h and silu.h and after defining
 *   T, NAME(x)            the element of rows and the name of x for it
 *   WIDEN(p), ROUND(p, v) VL elements to and from floats
 *   MATRICES              what holds one matrix of all experts, one expert below the other
 *   MULTIPLY(x, matrices, first, bias, out, from, to, rows, k, n)
 *       `rows` rows of x with rows [from, to) of the n rows of k columns from row `first` of the matrices on; gives
 *       whether there was memory for it. `multiply` does it for plain rows of T. */

/* Rows [from, to) of an expert's weight with its rows of x: whole tiles first, what is left one by one. */
INLINE int64_t NAME(multiply)(const T *x, const T *weight, const T *bias, T *out, int64_t from, int64_t to, int64_t rows,
                          int64_t k_size, int64_t n_size) {
    int64_t whole = from + (to - from) / TILE * TILE;
    if (whole > from) NAME(panel)(x, weight, bias, out, from, whole, rows, k_size, n_size, 0);
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = whole; n < to; n++)
            out[m * n_size + n] = NAME(single)(x + m * k_size, weight + n * k_size, bias ? bias + n : 0, k_size);
    return 1;
}

/* silu(gate) * up for columns [from, to) of some rows, or the clamped swiglu of GPT-OSS, where x * sigmoid(alpha x) is
 * silu(alpha x) / alpha. */
INLINE void NAME(activate)(const T *hidden, T *active, int64_t from, int64_t to, int64_t rows, int64_t i_size,
                           int64_t clamped, float alpha, float limit) {
    for (int64_t m = 0; m < rows; m++) {
        const T *gates = hidden + m * 2 * i_size, *ups = gates + i_size;
        for (int64_t i = from; i < to; i += VL) {
            int64_t left = to - i < VL ? to - i : VL;
            T gate_lanes[VL] = {0}, up_lanes[VL] = {0}, lanes[VL];
            memcpy(gate_lanes, gates + i, left * sizeof(T));
            memcpy(up_lanes, ups + i, left * sizeof(T));
            vf gate = WIDEN(gate_lanes), up = WIDEN(up_lanes);
            if (clamped) {
                gate = vf_select(gate > limit, vf_set(limit), gate);
                up = vf_select(up > limit, vf_set(limit), vf_select(up < -limit, vf_set(-limit), up));
                ROUND(lanes, vf_silu(gate * alpha) / alpha * (up + 1.0f));
            } else {
                ROUND(lanes, vf_silu(gate) * up);
            }
            memcpy(active + m * i_size + i, lanes, left * sizeof(T));
        }
    }
}

/* The weighted sum of a token's rows, in the order of its experts. */
INLINE void NAME(combine)(const T *partial, const float *weights, const int64_t *order, T *out, int64_t top_k,
                          int64_t d_size) {
    for (int64_t d = 0; d < d_size; d += VL) {
        int64_t left = d_size - d < VL ? d_size - d : VL;
        vf sum = vf_set(0.0f);
        T lanes[VL] = {0};
        for (int64_t k = 0; k < top_k; k++) {
            if (order[k] < 0) continue;
            memcpy(lanes, partial + order[k] * d_size + d, left * sizeof(T));
            sum += WIDEN(lanes) * weights[k];
        }
        ROUND(lanes, sum);
        memcpy(out + d, lanes, left * sizeof(T));
    }
}

/* Returns whether there was memory for the products. */
int64_t NAME(moe_experts)(const T *x, const float *weights, const int32_t *ids, const MATRICES *gate_up,
                          const MATRICES *down, const T *gate_up_bias, const T *down_bias, T *out, int64_t tokens,
                          int64_t count, int64_t top_k, int64_t d_size, int64_t i_size, int64_t clamped, float alpha,
                          float limit, char *workspace) {
    Workspace at = plan_workspace(tokens, count, top_k, d_size, i_size, sizeof(T));
    workspace += -(uintptr_t)workspace % ALIGNMENT;
    T *hidden = (T *)(workspace + at.hidden), *active = (T *)(workspace + at.active);
    /* Sorted rows of x, and when those are used up, what the experts made of them. */
    T *sorted = (T *)(workspace + at.rows), *partial = sorted;
    int64_t *starts = (int64_t *)(workspace + at.starts), *order = (int64_t *)(workspace + at.order);
    int64_t pairs = tokens * top_k;
    sort_rows(ids, pairs, count, starts, (int64_t *)(workspace + at.cursors), order);
    int64_t up_rows = panel_rows(2 * d_size, sizeof(T)), down_rows = panel_rows(i_size, sizeof(T));
    int64_t up_panels = (i_size + up_rows - 1) / up_rows, down_panels = (d_size + down_rows - 1) / down_rows;
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (pairs * d_size * i_size > PARALLEL_PRODUCTS)
    {
#pragma omp for schedule(static)
        for (int64_t p = 0; p < pairs; p++)
            if (order[p] >= 0) memcpy(sorted + order[p] * d_size, x + p / top_k * d_size, d_size * sizeof(T));
            /* A unit is a panel of an expert's gate, that of up beside it, and their activation. */
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < count * up_panels; unit++) {
            int64_t e = unit / up_panels, from = unit % up_panels * up_rows, first = starts[e];
            int64_t rows = starts[e + 1] - first, to = from + up_rows < i_size ? from + up_rows : i_size;
            if (!rows) continue;
            const T *from_x = sorted + first * d_size;
            const T *bias = gate_up_bias ? gate_up_bias + e * 2 * i_size : 0;
            T *into = hidden + first * 2 * i_size;
            const int64_t gate = e * 2 * i_size, up = gate + i_size;
            failed |= !MULTIPLY(from_x, gate_up, gate, bias, into, from, to, rows, d_size, 2 * i_size);
            bias = bias ? bias + i_size : 0;
            failed |= !MULTIPLY(from_x, gate_up, up, bias, into + i_size, from, to, rows, d_size, 2 * i_size);
            NAME(activate)(into, active + first * i_size, from, to, rows, i_size, clamped, alpha, limit);
        }
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < count * down_panels; unit++) {
            int64_t e = unit / down_panels, from = unit % down_panels * down_rows, first = starts[e];
            int64_t rows = starts[e + 1] - first, to = from + down_rows < d_size ? from + down_rows : d_size;
            const T *bias = down_bias ? down_bias + e * d_size : 0;
            if (rows)
                failed |= !MULTIPLY(active + first * i_size, down, e * d_size, bias, partial + first * d_size, from, to,
                                    rows, i_size, d_size);
        }
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; t++)
            NAME(combine)(partial, weights + t * top_k, order + t * top_k, out + t * d_size, top_k, d_size);
    }
    return !failed;
}
