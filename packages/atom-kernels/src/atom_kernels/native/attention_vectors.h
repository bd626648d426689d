/* The product of attention's operands by vectors: rows of words with columns of words. */
#pragma once

#if VL == 16
#define ROW_BLOCK 6
#define COLUMN_BLOCK 4
#else
#define ROW_BLOCK 4
#define COLUMN_BLOCK 2
#endif
#define KEY_STRIDE TILE

/* Where a word of a key goes: packed[word of the head][key]. */
INLINE word *key_word(word *packed, int depth, int at, int key) { return packed + at * KEY_STRIDE + key; }

/* acc + a * b, word by word; `a` is one word for all lanes. */
INLINE vf multiply_add(vf acc, const word *a, const word *b) {
#if PAIRS == 2
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32((int)*a), (__m512bh)_mm512_loadu_si512(b));
#else
    float scalar;
    memcpy(&scalar, a, 4);
    return vf_fma(vf_set(scalar), vf_load((const float *)b), acc);
#endif
}

/* c[rows][columns] (+)= a[rows][depth] * b[depth][columns], with `rows` and `vectors` known when compiling. */
INLINE void product_block(int rows, int vectors, const word *a, int64_t a_stride, const word *b, int64_t b_stride,
                          float *c, int64_t c_stride, int depth, int accumulate) {
    vf acc[ROW_BLOCK][COLUMN_BLOCK];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            acc[i][j] = accumulate ? vf_load(c + i * c_stride + j * VL) : vf_set(0);
    for (int k = 0; k < depth; k++)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                acc[i][j] = multiply_add(acc[i][j], a + i * a_stride + k, b + k * b_stride + j * VL);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) vf_store(c + i * c_stride + j * VL, acc[i][j]);
}

INLINE void product_columns(int rows, const word *a, int64_t a_stride, const word *b, int64_t b_stride, float *c,
                            int64_t c_stride, int depth, int columns, int accumulate) {
    int j = 0;
    for (; j + COLUMN_BLOCK * VL <= columns; j += COLUMN_BLOCK * VL)
        product_block(rows, COLUMN_BLOCK, a, a_stride, b + j, b_stride, c + j, c_stride, depth, accumulate);
    for (; j < columns; j += VL)
        product_block(rows, 1, a, a_stride, b + j, b_stride, c + j, c_stride, depth, accumulate);
}

/* `columns` is a multiple of VL. */
static void product(const word *a, int64_t a_stride, const word *b, int64_t b_stride, float *c, int64_t c_stride,
                    int rows, int depth, int columns, int accumulate) {
    int i = 0;
    for (; i + ROW_BLOCK <= rows; i += ROW_BLOCK)
        product_columns(ROW_BLOCK, a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, depth, columns,
                        accumulate);
    a += i * a_stride;
    c += i * c_stride;
#define REST(n) \
    case n: product_columns(n, a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    switch (rows - i) {
        REST(1) REST(2) REST(3)
#if ROW_BLOCK > 4
        REST(4) REST(5)
#endif
    }
#undef REST
}

/* scores[rows][TILE], `width` of them = queries[rows][depth] . packed keys. */
static void score_rows(const word *queries, const word *keys, float *scores, int rows, int depth, int width) {
    product(queries, depth, keys, TILE, scores, TILE, rows, depth, width, 0);
}

/* sums[rows][columns] += weights[rows][TILE], `width` of them . packed values. */
static void add_values(const word *weights, const word *values, float *sums, int rows, int width, int columns) {
    product(weights, TILE / PAIRS, values, columns, sums, columns, rows, width / PAIRS, columns, 1);
}

/* After a thread's last product. */
INLINE void end_products(void) {}
