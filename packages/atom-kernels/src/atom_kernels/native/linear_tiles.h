/* Products of rows of x, as left tiles, with 32 outputs, whose weight lies as right tiles read it: two blocks of 16 outputs,
 * [K / 32][16 pairs of inputs][16 outputs][2]. K comes out even. A row of the result is the same, to the bit, whatever the
 * other rows and their number. */
#pragma once
#include "tile_products.h"

/* Inputs that are multiplied before those behind them, and rows whose sums wait meanwhile. */
#define CHUNK 384
#define BLOCK_ROWS 256
/* Below this many products a second thread costs more than it gives. */
#define PARALLEL_ELEMENTS 65536

typedef struct {
    const bf16 *x, *bias;
    bf16 *out;
    int64_t m_size, k_size, n_size;
} linear_t;

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

/* Rows [from, to) of x, `BLOCK_ROWS` at most, with outputs [n, n + 32) of `weight`. The rows from `asking` on ask
 * for the weight `ahead` elements further on meanwhile. */
static void block(const linear_t *l, const bf16 *weight, int64_t from, int64_t to, int64_t n, int64_t asking, int64_t ahead,
                  int *shaped) {
    float sums[BLOCK_ROWS * PAIR] __attribute__((aligned(64)));
    right_t right = {.row = TILE_BYTES, .step = TILE_ROWS * TILE_BYTES, .other = l->k_size * TILE_ROWS * sizeof(bf16)};
    for (int64_t k = 0; k < l->k_size; k += CHUNK) {
        const int64_t left = l->k_size - k, steps = (left < CHUNK ? left : CHUNK) / DEPTH;
        right.at = (const char *)(weight + k * TILE_ROWS);
        for (int64_t m = from; m < to; m += PAIR) {
            const int64_t rows = to - m < PAIR ? to - m : PAIR, row = l->k_size * sizeof(bf16);
            const bf16 *x = l->x + m * l->k_size + k;
            float *of_rows = sums + (m - from) * PAIR;
            right.asked = m == asking && ahead ? right.at + ahead * (int64_t)sizeof(bf16) : NULL;
            shape(shaped, (int)rows);
            if (rows > TILE_ROWS)
                multiply(1, 1, x, row, right, steps, k == 0, of_rows, PAIR * sizeof(float));
            else
                multiply(0, 1, x, row, right, steps, k == 0, of_rows, PAIR * sizeof(float));
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
