/* The two products of attention in AMX tiles: pairs of bfloat16, sums in float32. */
#pragma once
#include "tile_products.h"

#define KEY_STRIDE TILE_ROWS

/* The shapes that this thread's tiles have: those of `shape`, or below zero those of `shape_for_few`. */
static _Thread_local int shaped;

/* Where a word of a key goes: packed[16 keys][word of the head][key], as right tiles are read. */
INLINE word *key_word(word *packed, int depth, int at, int key) {
    return packed + (key / TILE_ROWS * depth + at) * KEY_STRIDE + key % TILE_ROWS;
}

/* sums[rows][.] = left[rows][.] . right, `columns` of them, over `steps` tiles; distances of rows in words. `column`: from one
 * column of the right operand to the next. */
static void product(const word *left, int64_t left_row, right_t right, int64_t column, int rows, int steps, int columns,
                    float *sums, int64_t sums_row) {
    const char *first = right.at;
    for (int i = 0; i < rows; i += PAIR, left += PAIR * left_row, sums += PAIR * sums_row) {
        const int count = rows - i < PAIR ? rows - i : PAIR;
        shape(&shaped, count);
        for (int j = 0; j < columns; j += PAIR) {
            right.at = first + j * column * 4;
            if (count > TILE_ROWS)
                multiply(1, 1, left, left_row * 4, right, steps, 1, sums + j, sums_row * 4);
            else
                multiply(0, 1, left, left_row * 4, right, steps, 1, sums + j, sums_row * 4);
        }
    }
}

/* scores[rows][TILE] = queries[rows][depth] . packed keys, `width` of them. */
static void score_rows(const word *queries, const word *keys, float *scores, int rows, int depth, int width) {
    const right_t right = {(const char *)keys, TILE_BYTES, TILE_ROWS * TILE_BYTES, depth * TILE_BYTES, NULL};
    product(queries, depth, right, depth, rows, depth / TILE_ROWS, width, scores, TILE);
}

/* sums[rows][columns] = weights[rows][TILE], `width` of them, . packed values. */
static void sum_rows(const word *weights, const word *values, float *sums, int rows, int width, int columns) {
    const right_t right = {(const char *)values, columns * 4, TILE_ROWS * columns * 4, TILE_BYTES, NULL};
    product(weights, TILE / PAIRS, right, 1, rows, width / DEPTH, columns, sums, columns);
}

/* After a thread's last product. */
static void end_products(void) {
    RELEASE_TILES();
    shaped = 0;
}
