/* The products of packed weights for one element type; include once for each, after linear.h, packed_codes.h and defining
 *   T, NAME(x)            the elements of x and of panels, and the name of x for them
 *   VEC, STEP, LOAD(p), DOT(sum, a, b), STORE(p, v)
 *                         as linear_tile.h has them
 *   PACK(block, i)        register i of the elements that a block in floats rounds to
 *   LINEAR(x)             the name of x in the linear.h that takes these elements and gives floats
 *   MOST_ROWS             rows of x that share what is decoded: 2 or 4
 *   NAME(max_few_rows)    so many rows of x need no panel
 * Both ways through add in the order of linear.h: a row of the result has the bits that the decoded weights give there. */

/* Codes of a panel are asked for so many bytes before they are decoded: more of them are on their way at a time, and the
 * first of the next panel come while this one is multiplied. */
#define PANEL_CODES_AHEAD 4096

INLINE void NAME(store_block)(const int kind, const uint8_t *codes, const float *scales, const float *minima,
                              const uint8_t *zeros, T *out) {
    vf block[BLOCK / VL];
    ask_for(codes + PANEL_CODES_AHEAD);
    decode_block(kind, codes, scales, minima, zeros, block);
    for (int i = 0; i < BLOCK / STEP; i++) STORE(out + i * STEP, PACK(block, i));
}

/* `wide`: a group has whole blocks; else it is half a block. */
INLINE void NAME(decode_rows)(const int kind, const int wide, const weights_t *weights, int64_t from, int64_t to, T *out) {
    const int64_t group = weights->group, groups = weights->k_size / group, blocks = wide ? group / BLOCK : 1;
    const int64_t bytes = block_bytes(kind);
    const uint8_t *codes = weights->codes + from * (weights->k_size / BLOCK) * bytes;
    for (int64_t g = from * groups; g < to * groups; g += wide ? 1 : 2) {
        const int64_t second = wide ? g : g + 1;
        const float scales[2] = {weights->scale[g], weights->scale[second]};
        if (weights->minimum) {
            const float minima[2] = {weights->minimum[g], weights->minimum[second]};
            const uint8_t none[2] = {0, 0};
            for (int64_t i = 0; i < blocks; i++, codes += bytes, out += BLOCK)
                NAME(store_block)(kind, codes, scales, minima, none, out);
        } else {
            const uint8_t *zero = weights->zero;
            const uint8_t zeros[2] = {zero ? zero[g] : 8, zero ? zero[second] : 8};
            for (int64_t i = 0; i < blocks; i++, codes += bytes, out += BLOCK)
                NAME(store_block)(kind, codes, scales, 0, zeros, out);
        }
    }
}

#define DECODE(kind)                                                 \
    case kind:                                                       \
        if (weights->group % BLOCK)                                  \
            NAME(decode_rows)(kind, 0, weights, from, to, out);      \
        else                                                         \
            NAME(decode_rows)(kind, 1, weights, from, to, out);      \
        break;

static void NAME(decode)(int kind, const weights_t *weights, int64_t from, int64_t to, T *out) {
    switch (kind) {
        DECODE(INT8)
        DECODE(INT4)
        DECODE(E2M1)
        DECODE(E4M3)
    }
}
#undef DECODE

/* A tile as `linear_tile.h` makes it, of rows from `n` on and columns [from, to) of MR rows of x. */
INLINE vf NAME(packed_tile)(const int kind, const int wide, const int minima, const int NR, const int MR,
                            const weights_t *weights, const T *x, int64_t n, int64_t from, int64_t to) {
    const int64_t group = weights->group, groups = weights->k_size / group;
    const int64_t bytes = block_bytes(kind), row_bytes = weights->k_size / BLOCK * bytes;
    const uint8_t *codes = weights->codes + n * row_bytes + from / BLOCK * bytes;
    vf sums[TILE];
    for (int i = 0; i < TILE; i++) sums[i] = vf_set(0.0f);
    /* The group of a column, and the columns that are left of it: dividing for each block would take longer than the block. */
    int64_t g = n * groups + from / group, left = group - from % group;
    for (int64_t k = from; k < to; k += BLOCK, codes += bytes) {
#pragma GCC unroll 16
        for (int row = 0; row < NR; row++) {
            const int64_t one = g + row * groups, two = wide ? one : one + 1;
            const float scales[2] = {weights->scale[one], weights->scale[two]};
            const uint8_t *zero = kind == INT4 && !minima ? weights->zero : 0;
            const uint8_t absent = minima ? 0 : 8, zeros[2] = {zero ? zero[one] : absent, zero ? zero[two] : absent};
            vf block[BLOCK / VL];
            if (minima) {
                const float added[2] = {weights->minimum[one], weights->minimum[two]};
                decode_block(kind, codes + row * row_bytes, scales, added, zeros, block);
            } else
                decode_block(kind, codes + row * row_bytes, scales, 0, zeros, block);
            ask_for(codes + (row + NR) * row_bytes);
#pragma GCC unroll 16
            for (int i = 0; i < BLOCK / STEP; i++) {
                const VEC weight = PACK(block, i);
#pragma GCC unroll 16
                for (int m = 0; m < MR; m++)
                    sums[m * NR + row] = DOT(sums[m * NR + row], LOAD(x + m * weights->k_size + k + i * STEP), weight);
            }
        }
        left -= BLOCK;
        if (left <= 0) {
            g += wide ? 1 : 2;
            left = group;
        }
    }
    return sum_lanes(sums);
}

/* MR rows of x with the TILE rows of weight from `n` on; long rows are cut as `linear_tile.h` cuts them. */
INLINE void NAME(packed_product)(const int kind, const int wide, const int minima, const int MR, const weights_t *weights,
                                 const T *x, const T *bias, float *out, int64_t n, int64_t n_size) {
    const int64_t chunk = CHUNK_BYTES / (int64_t)sizeof(T), k_size = weights->k_size;
    const int NR = TILE / MR;
    for (int64_t end = n + TILE; n < end; n += NR) {
        vf total = NAME(packed_tile)(kind, wide, minima, NR, MR, weights, x, n, 0, k_size < chunk ? k_size : chunk);
        for (int64_t k = chunk; k < k_size; k += chunk)
            total += NAME(packed_tile)(kind, wide, minima, NR, MR, weights, x, n, k, k + chunk < k_size ? k + chunk : k_size);
        LINEAR(finish)(NR, MR, total, bias ? bias + n : 0, out + n, MR, n_size);
    }
}

/* Rows [from, to) of weight, a multiple of TILE, with few rows of x. */
INLINE void NAME(packed_rows)(const int kind, const int wide, const int minima, const weights_t *weights, const T *x,
                              const T *bias, float *out, int64_t m_size, int64_t from, int64_t to, int64_t n_size) {
    const int64_t k_size = weights->k_size;
    for (int64_t n = from; n < to; n += TILE) {
        int64_t m = 0;
        for (; MOST_ROWS == 4 && m + 4 <= m_size; m += 4)
            NAME(packed_product)(kind, wide, minima, MOST_ROWS, weights, x + m * k_size, bias, out + m * n_size, n, n_size);
        for (; m + 2 <= m_size; m += 2)
            NAME(packed_product)(kind, wide, minima, 2, weights, x + m * k_size, bias, out + m * n_size, n, n_size);
        if (m < m_size)
            NAME(packed_product)(kind, wide, minima, 1, weights, x + m * k_size, bias, out + m * n_size, n, n_size);
    }
}

#define MULTIPLY_KIND(kind)                                                                    \
    case kind:                                                                                 \
        if (has_minima(kind, weights) && weights->group % BLOCK)                               \
            NAME(packed_rows)(kind, 0, 1, weights, x, bias, out, m_size, from, to, n_size);    \
        else if (has_minima(kind, weights))                                                    \
            NAME(packed_rows)(kind, 1, 1, weights, x, bias, out, m_size, from, to, n_size);    \
        else if (weights->group % BLOCK)                                                       \
            NAME(packed_rows)(kind, 0, 0, weights, x, bias, out, m_size, from, to, n_size);    \
        else                                                                                   \
            NAME(packed_rows)(kind, 1, 0, weights, x, bias, out, m_size, from, to, n_size);    \
        break;

static void NAME(multiply_packed)(int kind, const weights_t *weights, const T *x, const T *bias, float *out,
                                  int64_t m_size, int64_t from, int64_t to, int64_t n_size) {
    switch (kind) {
        MULTIPLY_KIND(INT8)
        MULTIPLY_KIND(INT4)
        MULTIPLY_KIND(E2M1)
        MULTIPLY_KIND(E4M3)
    }
}
#undef MULTIPLY_KIND

