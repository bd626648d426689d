/* A tile of products of packed weights with rows in bfloat16.
 *
 * Each output adds up the columns of a group one pair after the other, then the groups, in float32: a row of the result is
 * the same, to the bit, whatever the other rows and their number. */
#pragma once
#include "packed_lanes.h"

#define ROWS_OF_TILE 8 /* with two blocks; as many sums are twice as many rows with one */
#define SUMS_OF_TILE 16

/* Rows of x, and where their results go. */
typedef struct {
    const bf16 *x, *bias;
    float *out;
    bf16 *rounded;     /* has the results in the place of `out`, which then has sums on their way; or null */
    const float *sums; /* [rows][groups], those of x; where they are needed */
    int64_t rows, n_size;
} rows_t;

INLINE __mmask16 outputs_of_block(int64_t block, int64_t n_size) {
    const int64_t left = n_size - block * VL;
    return left < VL ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
}

/* Which part of a product a tile is: rows and blocks from these on, groups [from, to). Steps of the first block begin at
 * `steps`, those of the next one `stride` further. */
typedef struct {
    int64_t row, block, from, to, stride;
    const uint8_t *steps;
} place_t;

/* NB blocks of 16 outputs with MR rows of x; rows past the last one repeat it, and are not stored. */
INLINE void tile(const int source, const int kind, const int minima, const int NB, const int MR, const place_t *place,
                 const lanes_t *weights, const numbers_t *numbers, const rows_t *rows, ahead_t *meanwhile) {
    const int64_t row = place->row, block = place->block, from = place->from, to = place->to, stride = place->stride;
    const uint8_t *steps = place->steps;
    const int64_t k_size = weights->k_size, group = weights->group, groups = k_size / group;
    const int64_t further = NB * stride < PANEL_BYTES ? NB * stride : BYTES_AHEAD;
    const bf16 *x[SUMS_OF_TILE];
    const float *sums_of_x[SUMS_OF_TILE];
    __m512 totals[SUMS_OF_TILE];
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++) {
        const int64_t at = row + m < rows->rows ? row + m : rows->rows - 1;
        x[m] = rows->x + at * k_size + from * group;
        sums_of_x[m] = rows->sums + at * groups;
        const float *out = rows->out + at * rows->n_size + block * VL;
#pragma GCC unroll 2
        for (int b = 0; b < NB; b++)
            totals[m * NB + b] = from ? _mm512_maskz_loadu_ps(outputs_of_block(block + b, rows->n_size), out + b * VL)
                                      : _mm512_setzero_ps();
    }
    int64_t k = 0;
    for (int64_t g = from; g < to; g++) {
        __m512 sums[SUMS_OF_TILE];
#pragma GCC unroll 16
        for (int i = 0; i < NB * MR; i++)
            sums[i] = kind == INT8 ? _mm512_set1_ps(-0.5f * sums_of_x[i / NB][g]) : _mm512_setzero_ps();
        for (const int64_t end = k + group; k < end; k += STEP_COLUMNS, steps += step_bytes(source)) {
            __m512i numbers_of_step[2][PAIRS];
#pragma GCC unroll 2
            for (int b = 0; b < NB; b++) {
                ask_ahead(meanwhile);
                for (int64_t line = 0; source != PANEL && line < step_bytes(source); line += LINE)
                    ask_for(steps + b * stride + further + line);
                load_step(source, kind, steps + b * stride, numbers, numbers_of_step[b]);
            }
#pragma GCC unroll 4
            for (int pair = 0; pair < PAIRS; pair++)
#pragma GCC unroll 16
                for (int m = 0; m < MR; m++) {
                    int32_t two;
                    memcpy(&two, x[m] + k + 2 * pair, sizeof(two));
                    const __m512bh of_x = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 2
                    for (int b = 0; b < NB; b++)
                        sums[m * NB + b] =
                            _mm512_dpbf16_ps(sums[m * NB + b], (__m512bh)numbers_of_step[b][pair], of_x);
                }
        }
#pragma GCC unroll 2
        for (int b = 0; b < NB; b++) {
            const int64_t at = (block + b) * groups + g;
            const __m512 scale = load_of_group(weights, weights->scale, at);
            const __m512 minimum = minima ? load_of_group(weights, weights->minimum, at) : scale;
#pragma GCC unroll 16
            for (int m = 0; m < MR; m++) {
                __m512 *total = totals + m * NB + b;
                *total = _mm512_fmadd_ps(sums[m * NB + b], scale, *total);
                if (minima) *total = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sums_of_x[m][g]), *total);
            }
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 2
        for (int b = 0; b < NB; b++) {
            const __mmask16 mask = outputs_of_block(block + b, rows->n_size);
            __m512 total = totals[m * NB + b];
            if (rows->bias && to == groups) {
                const __m256i bias = _mm256_maskz_loadu_epi16(mask, rows->bias + (block + b) * VL);
                total = _mm512_add_ps(total, (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16));
            }
            if (row + m >= rows->rows) continue;
            const int64_t at = (row + m) * rows->n_size + (block + b) * VL;
            if (rows->rounded && to == groups)
                _mm256_mask_storeu_epi16(rows->rounded + at, mask, (__m256i)_mm512_cvtneps_pbh(total));
            else
                _mm512_mask_storeu_ps(rows->out + at, mask, total);
        }
}
