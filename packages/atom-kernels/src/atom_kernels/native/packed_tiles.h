/* Packed weights as right tiles of bfloat16. Codes lie in blocks of 16 outputs and tiles of 32 inputs, as the numbers will:
 * [N / 16][K / 32][16 pairs of inputs][16 outputs][2] bytes; those of four bits [8 pairs][16 outputs][2], of which the low
 * halves are the first 8 pairs. What groups have is [N / 16][groups][16 outputs] in float32.
 *
 * A weight is its code times its scale, with what is added, in float32 and rounded once. */
#pragma once
#include "packed_codes.h"
#include "tiles.h"

#define PAIRS_OF_TILE 16
#define TILE_NUMBERS 512

typedef struct {
    const uint8_t *codes;
    const float *scale, *minimum, *zero; /* the last two may be null */
    int64_t k_size, group;
} tiled_weights_t;

/* What one group has for 8 outputs, twice each, and for the 8 behind them. */
typedef struct {
    __m512 scale[2], added[2], zero[2];
} of_group_t;

INLINE void twice_each(const float *values, __m512 *out) {
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 all = _mm512_loadu_ps(values);
    out[0] = _mm512_permutexvar_ps(low, all);
    out[1] = _mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(8)), all);
}

INLINE of_group_t of_group(const int kind, const tiled_weights_t *w, int64_t at) {
    of_group_t g = {0};
    twice_each(w->scale + at, g.scale);
    if (kind == E4M3)
        for (int i = 0; i < 2; i++) g.scale[i] = _mm512_mul_ps(g.scale[i], _mm512_set1_ps(0x1p8f)); /* see `number_of` */
    if (w->minimum) twice_each(w->minimum + at, g.added);
    if (w->zero) twice_each(w->zero + at, g.zero);
    return g;
}

/* What 16 codes stand for before scales and minima. */
INLINE __m512 number_of(const int kind, const tiled_weights_t *w, __m128i codes, __m512 zero) {
    if (kind == INT8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
    if (kind == E2M1) return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), _mm512_loadu_ps(doubled_e2m1));
    if (kind == E4M3) {
        /* Float16 has a bit of exponent more: its numbers are 2^8 times too small. */
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
        return _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16((short)0xbf80)));
    }
    const __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
    return w->minimum ? numbers : _mm512_sub_ps(numbers, w->zero ? zero : _mm512_set1_ps(8.0f));
}

/* A row of a tile: a pair of inputs of 16 outputs. */
INLINE void decode_pair(const int kind, const tiled_weights_t *w, __m256i codes, const of_group_t *g, bf16 *out) {
    __m512 weights[2];
    for (int i = 0; i < 2; i++) {
        const __m128i half = i ? _mm256_extracti128_si256(codes, 1) : _mm256_castsi256_si128(codes);
        const __m512 numbers = number_of(kind, w, half, g->zero[i]);
        weights[i] = w->minimum ? _mm512_fmadd_ps(numbers, g->scale[i], g->added[i]) : _mm512_mul_ps(numbers, g->scale[i]);
    }
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(weights[1], weights[0]));
}

/* A tile whose first 8 pairs are of one group, and the others of one that may be another. */
INLINE void decode_tile(const int kind, const tiled_weights_t *w, const uint8_t *codes, const of_group_t *first,
                        const of_group_t *second, bf16 *out) {
    const int row = 2 * TILE_ROWS, half = PAIRS_OF_TILE / 2;
    for (int pair = 0; pair < half; pair++, codes += row, out += row) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)codes);
        if (kind == INT8 || kind == E4M3) {
            decode_pair(kind, w, low, first, out);
            decode_pair(kind, w, _mm256_loadu_si256((const __m256i *)(codes + half * row)), second, out + half * row);
        } else {
            const __m256i nibble = _mm256_set1_epi8(15);
            decode_pair(kind, w, _mm256_and_si256(low, nibble), first, out);
            decode_pair(kind, w, _mm256_and_si256(_mm256_srli_epi16(low, 4), nibble), second, out + half * row);
        }
    }
}

/* Blocks [from, to) of 16 outputs, one behind the other. Codes are asked for so many bytes before they are decoded. */
#define CODES_AHEAD 2048
INLINE void decode_blocks(const int kind, const tiled_weights_t *w, int64_t from, int64_t to, bf16 *out) {
    const int64_t tiles = w->k_size / BLOCK, groups = w->k_size / w->group, bytes = block_bytes(kind) * TILE_ROWS;
    const int halves = w->group < BLOCK;
    const uint8_t *codes = w->codes + from * tiles * bytes;
    for (int64_t block = from; block < to; block++) {
        of_group_t first = {0}, second = {0};
        for (int64_t tile = 0, known = -1; tile < tiles; tile++, codes += bytes, out += TILE_NUMBERS) {
            const int64_t group = tile * BLOCK / w->group, at = (block * groups + group) * TILE_ROWS;
            for (int64_t line = 0; line < bytes; line += TILE_BYTES) ask_for(codes + CODES_AHEAD + line);
            if (group != known) first = of_group(kind, w, at);
            if (halves) second = of_group(kind, w, at + TILE_ROWS);
            known = group;
            decode_tile(kind, w, codes, &first, halves ? &second : &first, out);
        }
    }
}

static void decode_tiles(int kind, const tiled_weights_t *w, int64_t from, int64_t to, bf16 *out) {
    switch (kind) {
        case INT8: decode_blocks(INT8, w, from, to, out); break;
        case INT4: decode_blocks(INT4, w, from, to, out); break;
        case E2M1: decode_blocks(E2M1, w, from, to, out); break;
        case E4M3: decode_blocks(E4M3, w, from, to, out); break;
    }
}
