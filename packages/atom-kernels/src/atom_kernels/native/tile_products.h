/* Products of rows, as left tiles, with 32 outputs, of two right tiles. A row's sums are the same, to the bit, whatever the
 * other rows and their number. */
#pragma once
#include "tiles.h"

#define PAIR 32 /* rows, and outputs, that four tiles of sums have */
#define DEPTH 32 /* inputs of a tile */

/* Whether this process may use tiles. */
int64_t has_tiles(void) { return may_use_tiles(); }

/* What right tiles are loaded from; distances in bytes. */
typedef struct {
    const char *at;
    int64_t row, step, other; /* to the next pair of inputs, to the next 32 inputs, to the other 16 outputs */
    const char *asked;        /* tiles that memory is asked for meanwhile, as far apart; or NULL */
} right_t;

INLINE void ask_for_tile(const char *tile) {
    for (int line = 0; line < TILE_ROWS; line++) ask_for(tile + line * TILE_BYTES);
}

/* Adds to sums of rows, up to 16 or, where `two`, up to 32, their products with 16 outputs or, where `both`, 32, over `steps`
 * tiles of inputs. Distances of rows in bytes. `first`: there are no sums yet. */
INLINE void multiply(const int two, const int both, const void *rows, int64_t row, right_t right, int64_t steps, int first,
                     float *sums, int64_t sums_row) {
    const char *left = rows, *lower = left + TILE_ROWS * row;
    char *upper_sums = (char *)sums, *lower_sums = upper_sums + TILE_ROWS * sums_row;
    if (first) {
        ZERO_TILE(SUMS_00);
        if (both) ZERO_TILE(SUMS_01);
        if (two) ZERO_TILE(SUMS_10);
        if (two && both) ZERO_TILE(SUMS_11);
    } else {
        LOAD_TILE(SUMS_00, upper_sums, sums_row);
        if (both) LOAD_TILE(SUMS_01, upper_sums + TILE_BYTES, sums_row);
        if (two) LOAD_TILE(SUMS_10, lower_sums, sums_row);
        if (two && both) LOAD_TILE(SUMS_11, lower_sums + TILE_BYTES, sums_row);
    }
    for (int64_t step = 0; step < steps; step++, left += TILE_BYTES, lower += TILE_BYTES, right.at += right.step) {
        LOAD_TILE(LEFT_0, left, row);
        LOAD_TILE(RIGHT_0, right.at, right.row);
        if (right.asked) ask_for_tile(right.asked + step * right.step);
        ADD_PRODUCT(SUMS_00, LEFT_0, RIGHT_0);
        if (both) LOAD_TILE(RIGHT_1, right.at + right.other, right.row);
        if (right.asked) ask_for_tile(right.asked + right.other + step * right.step);
        if (both) ADD_PRODUCT(SUMS_01, LEFT_0, RIGHT_1);
        if (two) LOAD_TILE(LEFT_1, lower, row);
        if (two) ADD_PRODUCT(SUMS_10, LEFT_1, RIGHT_0);
        if (two && both) ADD_PRODUCT(SUMS_11, LEFT_1, RIGHT_1);
    }
    STORE_TILE(SUMS_00, upper_sums, sums_row);
    if (both) STORE_TILE(SUMS_01, upper_sums + TILE_BYTES, sums_row);
    if (two) STORE_TILE(SUMS_10, lower_sums, sums_row);
    if (two && both) STORE_TILE(SUMS_11, lower_sums + TILE_BYTES, sums_row);
}

/* Shapes the tiles for up to 32 rows, unless they have these shapes. */
INLINE void shape(int *now, int rows) {
    if (*now == rows) return;
    const tile_shapes_t shapes = tile_shapes(rows < TILE_ROWS ? rows : TILE_ROWS, rows > TILE_ROWS ? rows - TILE_ROWS : 1);
    SHAPE_TILES(&shapes);
    *now = rows;
}
