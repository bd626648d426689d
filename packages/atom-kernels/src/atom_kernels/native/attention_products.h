/* The two products of attention, of some rows with a tile of keys and with one of values.
 *
 * Many rows share what was packed. Few, such as those of a decode, would wait longer for packing than for products: keys
 * and values then meet them in registers, as they are read. Each sum is added in one order either way.
 */
#pragma once
#include "attention_tile.h"

#if PAIRS == 2 && !defined(CACHE_E4M3) && defined(__GNUC__) && !defined(__clang__)
#define FEW_ROWS 6

INLINE vf add_products(vf acc, vu operand, const word *a) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)operand, (__m512bh)_mm512_set1_epi32((int)*a));
}

INLINE void multiply_few_keys(const int rows, const stored *const *keys, const stored *const *ahead, int head_dim,
                              const word *queries, float *scores) {
    int depth = head_dim / PAIRS;
    for (int t = 0; t < TILE; t += VL) {
        vf acc[FEW_ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) acc[i] = vf_set(0);
        for (int d = 0; d < depth; d += VL) {
            vu column[VL];
            transposed_words(keys + t, d * PAIRS, column);
            prefetch_lines(ahead + t, VL, d * PAIRS);
#pragma GCC unroll 16
            for (int k = 0; k < VL; k++)
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) acc[i] = add_products(acc[i], column[k], queries + i * depth + d + k);
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) vf_store(scores + i * TILE + t, acc[i]);
    }
}

/* Columns [from, from + registers * WIDTH). */
INLINE void add_few_values(const int rows, const int registers, const stored *const *values, const stored *const *ahead,
                           int from, int columns, const word *weights, float *sums) {
    vf acc[FEW_ROWS][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 2 * registers; j++) acc[i][j] = vf_load(sums + i * columns + from + j * VL);
    for (int t = 0; t < TILE; t += PAIRS) {
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++) {
            int at = from + j * WIDTH;
            vu low, high;
            pair_up(values[t] + at, values[t + 1] + at, &low, &high);
            prefetch_lines(ahead + t, PAIRS, at);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const word *weight = weights + (i * TILE + t) / PAIRS;
                acc[i][2 * j] = add_products(acc[i][2 * j], low, weight);
                acc[i][2 * j + 1] = add_products(acc[i][2 * j + 1], high, weight);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 2 * registers; j++) vf_store(sums + i * columns + from + j * VL, acc[i][j]);
}

INLINE void multiply_few_values(const int rows, const stored *const *values, const stored *const *ahead, int columns,
                                const word *weights, float *sums) {
    int from = 0;
    for (; from + 2 * WIDTH <= columns; from += 2 * WIDTH)
        add_few_values(rows, 2, values, ahead, from, columns, weights, sums);
    if (from < columns) add_few_values(rows, 1, values, ahead, from, columns, weights, sums);
}

/* Calls f with a number of rows that is known when compiling. */
#define WITH_FEW_ROWS(rows, f, ...) \
    switch (rows) { \
        case 1: f(1, __VA_ARGS__); break; \
        case 2: f(2, __VA_ARGS__); break; \
        case 3: f(3, __VA_ARGS__); break; \
        case 4: f(4, __VA_ARGS__); break; \
        case 5: f(5, __VA_ARGS__); break; \
        case 6: f(6, __VA_ARGS__); break; \
    }
#endif

/* scores[rows][TILE], `width` of them = queries . keys; `packed` is where keys may be packed. Those in `ahead` are wanted
 * soon. */
static void multiply_keys(int rows, const stored *const *keys, const stored *const *ahead, int width, int head_dim,
                          const word *queries, word *packed, float *scores) {
#ifdef FEW_ROWS
    if (rows <= FEW_ROWS && head_dim % WIDTH == 0) {
        WITH_FEW_ROWS(rows, multiply_few_keys, keys, ahead, head_dim, queries, scores)
        return;
    }
#endif
    pack_keys(keys, ahead, width, head_dim, packed);
    score_rows(queries, packed, scores, rows, head_dim / PAIRS, width);
}

/* sums[rows][columns] += weights . values, likewise; `columns` are those of the values and zeros up to a register. */
static void multiply_values(int rows, const stored *const *values, const stored *const *ahead, int width, int value_dim,
                            int columns, const word *weights, word *packed, float *sums) {
#ifdef FEW_ROWS
    if (rows <= FEW_ROWS && value_dim % WIDTH == 0) {
        WITH_FEW_ROWS(rows, multiply_few_values, values, ahead, columns, weights, sums)
        return;
    }
#endif
    pack_values(values, ahead, width, value_dim, columns, packed);
    add_values(weights, packed, sums, rows, width, columns);
}
