/* Products of rows of x, as left tiles, with 32 outputs, whose weight lies as right tiles read it: two blocks of 16 outputs,
 * [K / 32][16 pairs of inputs][16 outputs][2]. K comes out even. A row of the result is the same, to the bit, whatever the
 * other rows and their number. */
#pragma once
#include "tiles.h"

#define PAIR 32 /* rows, and outputs, that four tiles of sums have */
#define DEPTH 32 /* inputs of a tile */
/* Inputs that are multiplied before those behind them, and rows whose sums wait meanwhile. */
#define CHUNK 1024
#define BLOCK_ROWS 256
/* Below this many products a second thread costs more than it gives. */
#define PARALLEL_ELEMENTS 65536

/* Whether this process may use tiles. */
int64_t has_tiles(void) { return may_use_tiles(); }

typedef struct {
    const bf16 *x, *bias;
    bf16 *out;
    int64_t m_size, k_size, n_size;
} linear_t;

INLINE void ask_for_tile(const bf16 *tile) {
    for (int line = 0; line < TILE_ROWS; line++) ask_for((const char *)tile + line * TILE_BYTES);
}

/* Adds to sums of rows of x, up to 16 or, where `two`, up to 32, their products with 16 outputs or, where `both`, 32, over
 * `steps` tiles of inputs. `first`: there are none yet. `right_stride` lies between blocks of 16 outputs, also of those at
 * `asked`, if any, which memory is asked for meanwhile. */
INLINE void multiply(const int two, const int both, const bf16 *x, int64_t x_stride, const bf16 *right,
                     int64_t right_stride, int64_t steps, int first, const bf16 *asked, float *sums) {
    const int64_t row = PAIR * sizeof(float), tile = TILE_ROWS * DEPTH;
    float *lower = sums + TILE_ROWS * PAIR;
    if (first) {
        ZERO_TILE(SUMS_00);
        if (both) ZERO_TILE(SUMS_01);
        if (two) ZERO_TILE(SUMS_10);
        if (two && both) ZERO_TILE(SUMS_11);
    } else {
        LOAD_TILE(SUMS_00, sums, row);
        if (both) LOAD_TILE(SUMS_01, sums + TILE_ROWS, row);
        if (two) LOAD_TILE(SUMS_10, lower, row);
        if (two && both) LOAD_TILE(SUMS_11, lower + TILE_ROWS, row);
    }
    for (int64_t step = 0; step < steps; step++, x += DEPTH, right += tile) {
        LOAD_TILE(LEFT_0, x, x_stride * sizeof(bf16));
        LOAD_TILE(RIGHT_0, right, TILE_BYTES);
        if (asked) ask_for_tile(asked + step * tile);
        ADD_PRODUCT(SUMS_00, LEFT_0, RIGHT_0);
        if (both) LOAD_TILE(RIGHT_1, right + right_stride, TILE_BYTES);
        if (asked) ask_for_tile(asked + right_stride + step * tile);
        if (both) ADD_PRODUCT(SUMS_01, LEFT_0, RIGHT_1);
        if (two) LOAD_TILE(LEFT_1, x + TILE_ROWS * x_stride, x_stride * sizeof(bf16));
        if (two) ADD_PRODUCT(SUMS_10, LEFT_1, RIGHT_0);
        if (two && both) ADD_PRODUCT(SUMS_11, LEFT_1, RIGHT_1);
    }
    STORE_TILE(SUMS_00, sums, row);
    if (both) STORE_TILE(SUMS_01, sums + TILE_ROWS, row);
    if (two) STORE_TILE(SUMS_10, lower, row);
    if (two && both) STORE_TILE(SUMS_11, lower + TILE_ROWS, row);
}

/* Adds the bias to sums of `rows` rows with outputs [n, n + 32), as far as there are, rounds and stores them. */
static void finish(const linear_t *l, const float *sums, int64_t m, int64_t rows, int64_t n) {
    const int64_t count = l->n_size - n < PAIR ? l->n_size - n : PAIR;
    for (int64_t i = 0; i < rows; i++, sums += PAIR) {
        bf16 *out = l->out + (m + i) * l->n_size + n;
        int64_t j = 0;
        for (; j + VL <= count; j += VL) {
            vf sum = vf_load(sums + j);
            if (l->bias) sum += vf_load_bf16(l->bias + n + j);
            vf_store_bf16(out + j, sum);
        }
        for (; j < count; j++) out[j] = float_to_bf16(l->bias ? sums[j] + bf16_to_float(l->bias[n + j]) : sums[j]);
    }
}

/* Shapes the tiles, unless they have these shapes. */
INLINE void shape(int *now, int rows) {
    if (*now == rows) return;
    const tile_shapes_t shapes = tile_shapes(rows < TILE_ROWS ? rows : TILE_ROWS, rows > TILE_ROWS ? rows - TILE_ROWS : 1);
    SHAPE_TILES(&shapes);
    *now = rows;
}

/* Rows [from, to) of x, `BLOCK_ROWS` at most, with outputs [n, n + 32), whose weight is `right`. The rows from `asking` on
 * ask for the weight `ahead` elements further on meanwhile. */
static void block(const linear_t *l, const bf16 *right, int64_t from, int64_t to, int64_t n, int64_t asking, int64_t ahead,
                  int *shaped) {
    float sums[BLOCK_ROWS * PAIR] __attribute__((aligned(64)));
    const int64_t right_stride = l->k_size * TILE_ROWS;
    for (int64_t k = 0; k < l->k_size; k += CHUNK) {
        const int64_t left = l->k_size - k, steps = (left < CHUNK ? left : CHUNK) / DEPTH;
        const bf16 *at_k = right + k * TILE_ROWS;
        for (int64_t m = from; m < to; m += PAIR) {
            const int64_t rows = to - m < PAIR ? to - m : PAIR;
            const bf16 *x = l->x + m * l->k_size + k, *asked = m == asking && ahead ? at_k + ahead : 0;
            float *of_rows = sums + (m - from) * PAIR;
            shape(shaped, (int)rows);
            if (rows > TILE_ROWS)
                multiply(1, 1, x, l->k_size, at_k, right_stride, steps, k == 0, asked, of_rows);
            else
                multiply(0, 1, x, l->k_size, at_k, right_stride, steps, k == 0, asked, of_rows);
            if (left <= CHUNK) finish(l, of_rows, m, rows, n);
        }
    }
}

/* All rows of x with outputs [n, n + 32). */
INLINE void all_rows(const linear_t *l, const bf16 *right, int64_t n, int64_t asking, int64_t ahead, int *shaped) {
    for (int64_t m = 0; m < l->m_size; m += BLOCK_ROWS)
        block(l, right, m, m + BLOCK_ROWS < l->m_size ? m + BLOCK_ROWS : l->m_size, n, asking, ahead, shaped);
}

/* A thread's part of all pairs of blocks of outputs. */
INLINE void pairs_of_thread(int64_t n_size, int64_t *from, int64_t *to) {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num(), pairs = (n_size + PAIR - 1) / PAIR;
    *from = pairs * thread / threads, *to = pairs * (thread + 1) / threads;
}
