/* The linear kernel for one element type; include once for each, after defining
 *   T, OUT, NAME(x)       the elements of what comes in and what goes out, and the name of x for them
 *   VEC, STEP             a register of elements and how many it holds
 *   LOAD(p), LOAD_TAIL(p, count), DOT(sum, a, b)
 *   ABREAST               rows of weight that a single row of x meets at a time
 *   WIDEN(p), ROUND(p, v) VL elements of T to floats, floats to VL elements of OUT
 * What depends on OUT (and NAME) is undefined again at the end: elements of T may go out as others. */

/* The products of NR rows of weight with MR rows of x, [m * NR + n], over `k_size` elements of rows that lie `stride`
 * apart. `ahead` asks for the weight that many rows further on: few streams alone do not keep the memory busy. */
INLINE vf NAME(tile)(const int NR, const int MR, const int ahead, const T *const *x_row, const T *weight, int64_t k_size,
                     int64_t stride) {
    vf sums[TILE];
    for (int i = 0; i < TILE; i++) sums[i] = vf_set(0.0f);
    const int abreast = MR == 1 ? ABREAST : NR;
    int64_t k = 0;
#pragma GCC unroll 16
    for (int first = 0; first < NR; first += abreast)
        for (k = 0; k + STEP <= k_size; k += STEP) {
            VEC xs[MAX_MR];
            for (int m = 0; m < MR; m++) {
                xs[m] = LOAD(x_row[m] + k);
                KEEP(xs[m]);
            }
            for (int n = first; n < first + abreast; n++) {
                VEC w = LOAD(weight + n * stride + k);
                KEEP(w);
                const T *further = weight + (n + ahead) * stride + k;
                if (abreast == 1)
                    ask_for((const char *)further + BYTES_AHEAD);
                else if (ahead)
                    ask_for(further);
                for (int m = 0; m < MR; m++) sums[m * NR + n] = DOT(sums[m * NR + n], xs[m], w);
            }
        }
    if (k < k_size)
        for (int n = 0; n < NR; n++) {
            VEC w = LOAD_TAIL(weight + n * stride + k, k_size - k);
            for (int m = 0; m < MR; m++)
                sums[m * NR + n] = DOT(sums[m * NR + n], LOAD_TAIL(x_row[m] + k, k_size - k), w);
        }
    return sum_lanes(sums);
}

/* Adds the bias, rounds and stores the first `rows` rows of a tile. */
INLINE void NAME(finish)(const int NR, const int MR, vf total, const T *bias, OUT *out, int64_t rows, int64_t n_size) {
    if (bias) {
        T biases[TILE] = {0};
        for (int m = 0; m < MR; m++) memcpy(biases + m * NR, bias, NR * sizeof(T));
        total += WIDEN(biases);
    }
    OUT lanes[TILE];
    ROUND(lanes, total);
    for (int m = 0; m < MR && m < rows; m++) memcpy(out + m * n_size, lanes + m * NR, NR * sizeof(OUT));
}

/* Rows [from, to) of weight, a multiple of TILE, with `rows` rows of x; those past it up to MR repeat the last one and are
 * not stored. Long rows are cut, so that the pieces of x stay in the L1 while the panel passes. */
INLINE void NAME(block)(const int NR, const int MR, const int ahead, const T *x, const T *weight, const T *bias, OUT *out,
                        int64_t from, int64_t to, int64_t rows, int64_t k_size, int64_t n_size) {
    const int64_t chunk = CHUNK_BYTES / (int64_t)sizeof(T);
    float totals[MAX_MR * PANEL_ROWS];
    for (int64_t k = 0; k < k_size; k += chunk) {
        int64_t left = k_size - k;
        const T *x_row[MAX_MR];
        for (int m = 0; m < MR; m++) x_row[m] = x + (m < rows ? m : rows - 1) * k_size + k;
        for (int64_t n = from; n < to; n += NR) {
            vf total = NAME(tile)(NR, MR, ahead, x_row, weight + n * k_size + k, left < chunk ? left : chunk, k_size);
            float *kept = totals + (n - from) * MR;
            if (k) total += vf_load(kept);
            if (left > chunk)
                vf_store(kept, total);
            else
                NAME(finish)(NR, MR, total, bias ? bias + n : 0, out + n, rows, n_size);
        }
    }
}

#if VL == 8
/* The products of four rows of weight with three rows of x, as `tile` makes them. */
INLINE void NAME(three_by_four)(const int ahead, const T *x, const T *weight, int64_t k_size, int64_t stride, vf *sums) {
    for (int i = 0; i < 2 * TILE; i++) sums[i] = vf_set(0.0f);
    int64_t k = 0;
    for (; k + STEP <= k_size; k += STEP) {
        VEC x0 = LOAD(x + k), x1 = LOAD(x + stride + k), x2 = LOAD(x + 2 * stride + k);
        KEEP(x0);
        KEEP(x1);
        KEEP(x2);
        for (int i = 0; i < 4; i++) {
            VEC w = LOAD(weight + i * stride + k);
            KEEP(w);
            if (ahead) ask_for(weight + (i + ahead) * stride + k);
            sums[i] = DOT(sums[i], x0, w);
            sums[4 + i] = DOT(sums[4 + i], x1, w);
            sums[8 + i] = DOT(sums[8 + i], x2, w);
        }
    }
    if (k < k_size)
        for (int i = 0; i < 12; i++)
            sums[i] = DOT(sums[i], LOAD_TAIL(x + i / 4 * stride + k, k_size - k),
                          LOAD_TAIL(weight + i % 4 * stride + k, k_size - k));
}

/* `block` for three rows of x and four of weight. Twelve sums in flight keep both multipliers busy, which eight do not;
 * they fill the registers, so that the compiler is to see nothing else. */
static __attribute__((noinline)) void NAME(three_rows)(asking_t asking, const T *x, const T *weight, const T *bias, OUT *out,
                                                       int64_t from, int64_t to, int64_t k_size, int64_t n_size) {
    const int64_t chunk = CHUNK_BYTES / (int64_t)sizeof(T);
    float totals[4 * PANEL_ROWS];
    for (int64_t start = 0; start < k_size; start += chunk) {
        int64_t left = k_size - start, size = left < chunk ? left : chunk;
        for (int64_t n = from; n < to; n += 4) {
            const T *w = weight + n * k_size + start;
            vf sums[2 * TILE];
            const int ahead = ahead_of(asking, n);
            if (ahead)
                NAME(three_by_four)(ahead, x + start, w, size, k_size, sums);
            else
                NAME(three_by_four)(0, x + start, w, size, k_size, sums);
            vf two = sum_lanes(sums), third = sum_lanes(sums + TILE);
            float *kept = totals + (n - from) * 4;
            if (start) two += vf_load(kept), third += vf_load(kept + TILE);
            if (left > chunk) {
                vf_store(kept, two);
                vf_store(kept + TILE, third);
            } else {
                NAME(finish)(4, 2, two, bias ? bias + n : 0, out + n, 2, n_size);
                NAME(finish)(4, 1, third, bias ? bias + n : 0, out + 2 * n_size + n, 1, n_size);
            }
        }
    }
}
#endif

/* The same for all rows of x. The first of them ask for the weight that they meet soon, and others for that `next` rows
 * further on, once. */
static void NAME(panel)(const T *x, const T *weight, const T *bias, OUT *out, int64_t from, int64_t to, int64_t m_size,
                        int64_t k_size, int64_t n_size, const int next) {
    int64_t m = 0;
#if VL == 8
    if (m_size >= MANY_ROWS)
        for (; m + 3 <= m_size; m += 3)
            NAME(three_rows)(m ? share_of_asking(from, to, m / 3 - 1, m_size / 3 - 1, next) : (asking_t){from, to, 4},
                             x + m * k_size, weight, bias, out + m * n_size, from, to, k_size, n_size);
#endif
    for (; m < m_size; m += MAX_MR) {
        const T *x_block = x + m * k_size;
        OUT *out_block = out + m * n_size;
        const int64_t rows = m_size - m;
        if (rows == 1)
            NAME(block)(TILE, 1, TILE, x_block, weight, bias, out_block, from, to, rows, k_size, n_size);
        else if (rows == 2 && MAX_MR > 2)
            NAME(block)(TILE / 2, 2, TILE, x_block, weight, bias, out_block, from, to, rows, k_size, n_size);
        else if (m == 0)
            NAME(block)(TILE / MAX_MR, MAX_MR, TILE / MAX_MR, x_block, weight, bias, out_block, from, to, rows, k_size,
                        n_size);
        else
            NAME(block)(TILE / MAX_MR, MAX_MR, m == MAX_MR ? next : 0, x_block, weight, bias, out_block, from, to, rows,
                        k_size, n_size);
    }
}

/* One sum, for the rows of weight that fill no tile. */
static OUT NAME(single)(const T *x, const T *weight, const T *bias, int64_t k_size) {
    vf sum = vf_set(0.0f);
    int64_t k = 0;
    for (; k + STEP <= k_size; k += STEP) sum = DOT(sum, LOAD(x + k), LOAD(weight + k));
    if (k < k_size) sum = DOT(sum, LOAD_TAIL(x + k, k_size - k), LOAD_TAIL(weight + k, k_size - k));
    T biases[TILE] = {bias ? *bias : 0};
    OUT lanes[TILE];
    ROUND(lanes, vf_set(vf_hsum(sum)) + WIDEN(biases));
    return lanes[0];
}

/* Outputs [from, to), the first a multiple of TILE. */
static void NAME(outputs)(const T *x, const T *weight, const T *bias, OUT *out, int64_t from, int64_t to, int64_t m_size,
                          int64_t k_size, int64_t n_size) {
    int64_t tiled = to / TILE * TILE, rows = PANEL_BYTES / ((int64_t)sizeof(T) * k_size) / TILE * TILE;
    const int few = m_size <= STREAMED_ROWS, most_rows = few ? STREAMED_PANEL_ROWS : PANEL_ROWS;
    rows = rows > most_rows ? most_rows : rows < TILE ? TILE : rows;
    for (; from < tiled; from += rows)
        NAME(panel)(x, weight, bias, out, from, from + rows < tiled ? from + rows : tiled, m_size, k_size, n_size,
                    few ? (int)rows : 0);
    for (int64_t m = 0; m < m_size; m++)
        for (int64_t n = tiled; n < to; n++)
            out[m * n_size + n] = NAME(single)(x + m * k_size, weight + n * k_size, bias ? bias + n : 0, k_size);
}

void NAME(linear)(const T *x, const T *weight, const T *bias, OUT *out, int64_t m_size, int64_t k_size, int64_t n_size) {
#pragma omp parallel if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        outputs_of_thread(n_size, &from, &to);
        NAME(outputs)(x, weight, bias, out, from, to, m_size, k_size, n_size);
    }
}
#undef OUT
#undef NAME
#undef ROUND
