/* Products of packed weights in bfloat16: include after linear.h and packed_codes.h, where the CPU multiplies bfloat16.
 *
 * A weight is its code times its scale, with what is added, in float32 and rounded once: 32 weights in a register.
 * A code of four bits has only sixteen numbers in a group: they are rounded once a group, and codes look them up. */
#pragma once

/* Rows of weight that are decoded beside each other. */
#define ROWS_AT_ONCE 4

/* How codes become weights: four bits look their numbers up, of which something may be added or taken away. */
enum { LOOKED_UP, LOOKED_UP_MINUS_ZERO, LOOKED_UP_PLUS_MINIMUM, WHOLE, WHOLE_PLUS_MINIMUM, FLOAT8 };

INLINE int has_table(const int way) { return way <= LOOKED_UP_PLUS_MINIMUM; }
INLINE int has_minimum(const int way) { return way == LOOKED_UP_PLUS_MINIMUM || way == WHOLE_PLUS_MINIMUM; }

static int way_of(int kind, const weights_t *weights) {
    if (kind == E4M3) return FLOAT8;
    if (kind == INT8) return weights->minimum ? WHOLE_PLUS_MINIMUM : WHOLE;
    if (kind == E2M1) return LOOKED_UP;
    return weights->minimum ? LOOKED_UP_PLUS_MINIMUM : weights->zero ? LOOKED_UP_MINUS_ZERO : LOOKED_UP;
}

/* What codes of four bits stand for before zeros, scales and minima. */
static __m512 numbers_of(int kind, int way) {
    __m512 codes = (__m512)vf_iota();
    if (kind == E2M1) return _mm512_loadu_ps(doubled_e2m1);
    return way == LOOKED_UP ? _mm512_sub_ps(codes, _mm512_set1_ps(8.0f)) : codes;
}

INLINE __m512 scaled(const int way, const weights_t *weights, __m512 values, int64_t g) {
    const __m512 scale = _mm512_set1_ps(weights->scale[g]);
    if (has_minimum(way)) return _mm512_fmadd_ps(values, scale, _mm512_set1_ps(weights->minimum[g]));
    return _mm512_mul_ps(values, scale);
}

/* The sixteen numbers of two groups, as a register in which codes look up: the second's lie behind the first's. */
INLINE __m512i table_of(const int way, const weights_t *weights, __m512 numbers, int64_t first, int64_t second) {
    __m512 low = numbers, high = numbers;
    if (way == LOOKED_UP_MINUS_ZERO) {
        low = _mm512_sub_ps(numbers, _mm512_set1_ps(weights->zero[first]));
        high = _mm512_sub_ps(numbers, _mm512_set1_ps(weights->zero[second]));
    }
    low = scaled(way, weights, low, first);
    high = first == second ? low : scaled(way, weights, high, second);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* A block's codes of four bits in words, of which a look-up sees five bits: the fifth is of the next code, and of no
 * account where both halves of the table are alike; else it says the half. */
INLINE __m512i look_up(const int half, const uint8_t *codes, __m512i table) {
    const __m256i low = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes));
    __m512i index = _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_srli_epi16(low, 4), 1);
    if (half) {
        const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
        index = _mm512_or_si512(_mm512_and_si512(index, _mm512_set1_epi16(15)), second);
    }
    return _mm512_permutexvar_epi16(index, table);
}

/* A block of codes of eight bits; the halves may be of two groups. */
INLINE __m512i from_bytes(const int way, const weights_t *weights, const uint8_t *codes, int64_t first, int64_t second) {
    __m512 low, high;
    if (way == FLOAT8) {
        /* Float16 has a bit of exponent more: its numbers are 2^8 times too small, which the scale makes up for. */
        __m512i halves = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)codes)), 7);
        halves = _mm512_and_si512(halves, _mm512_set1_epi16((short)0xbf80));
        low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_set1_ps(weights->scale[first] * 0x1p8f));
        high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)),
                             _mm512_set1_ps(weights->scale[second] * 0x1p8f));
    } else {
        low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes)));
        high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + 16))));
        low = scaled(way, weights, low, first);
        high = scaled(way, weights, high, second);
    }
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* A place in the groups of a row: dividing for each block would take longer than the block. */
typedef struct {
    int64_t group, left;
} place_t;

INLINE place_t place_of(int64_t size, int64_t column) { return (place_t){column / size, size - column % size}; }

/* Weights of rows [from, to). */
INLINE void decode_way(const int way, const int half, const weights_t *weights, __m512 numbers, int64_t from, int64_t to,
                       bf16 *out) {
    const int64_t group = half ? BLOCK : weights->group, groups = weights->k_size / weights->group;
    const int64_t bytes = has_table(way) ? BLOCK / 2 : BLOCK;
    const uint8_t *codes = weights->codes + from * (weights->k_size / BLOCK) * bytes;
    for (int64_t g = from * groups; g < to * groups; g += half ? 2 : 1) {
        const int64_t second = half ? g + 1 : g;
        const __m512i table = has_table(way) ? table_of(way, weights, numbers, g, second) : _mm512_setzero_si512();
        for (int64_t k = 0; k < group; k += BLOCK, codes += bytes, out += BLOCK)
            _mm512_storeu_si512(out, has_table(way) ? look_up(half, codes, table)
                                                    : from_bytes(way, weights, codes, g, second));
    }
}

/* Sums of lanes over columns [from, to): NR rows of weight from `n` on, MR of x; that of row r with x's m goes to
 * sums[m * stride + r]. */
INLINE void sum_columns(const int way, const int half, const int NR, const int MR, const weights_t *weights, __m512 numbers,
                        const bf16 *x, int64_t n, int64_t from, int64_t to, vf *sums, const int stride) {
    const int64_t k_size = weights->k_size, size = half ? BLOCK : weights->group, groups = k_size / weights->group;
    const int64_t bytes = has_table(way) ? BLOCK / 2 : BLOCK, row_bytes = k_size / BLOCK * bytes;
    const int64_t ahead = (BYTES_AHEAD / row_bytes + 1) * row_bytes;
    const uint8_t *codes = weights->codes + n * row_bytes + from / BLOCK * bytes;
    vf kept[TILE];
#pragma GCC unroll 16
    for (int i = 0; i < NR * MR; i++) kept[i] = vf_set(0.0f);
    ahead_t meanwhile = weights->meanwhile ? *weights->meanwhile : (ahead_t){0};
    int64_t at = from / size, end = (at + 1) * size;
    for (int64_t k = from; k < to; at++, end += size) {
        const int64_t first = n * groups + (half ? 2 * at : at);
        __m512i tables[ROWS_AT_ONCE];
#pragma GCC unroll 16
        for (int row = 0; row < NR; row++) {
            const int64_t g = first + row * groups;
            if (has_table(way)) tables[row] = table_of(way, weights, numbers, g, half ? g + 1 : g);
        }
        for (const int64_t stop = end < to ? end : to; k < stop; k += BLOCK, codes += bytes) {
            __m512i xs[MAX_MR];
#pragma GCC unroll 16
            for (int m = 0; m < MR; m++) xs[m] = _mm512_loadu_si512(x + m * k_size + k);
            ask_ahead(&meanwhile);
#pragma GCC unroll 16
            for (int row = 0; row < NR; row++) {
                const uint8_t *block = codes + row * row_bytes;
                const int64_t g = first + row * groups;
                const __m512i weight = has_table(way) ? look_up(half, block, tables[row])
                                                      : from_bytes(way, weights, block, g, half ? g + 1 : g);
                if (has_table(way))
                    __builtin_prefetch(block + ahead); /* looking up takes so long that they are few at a time */
                else
                    ask_for(block + ahead);
#pragma GCC unroll 16
                for (int m = 0; m < MR; m++)
                    kept[m * NR + row] =
                        (vf)_mm512_dpbf16_ps((__m512)kept[m * NR + row], (__m512bh)xs[m], (__m512bh)weight);
            }
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 16
        for (int row = 0; row < NR; row++) sums[m * stride + row] = kept[m * NR + row];
    if (weights->meanwhile) *weights->meanwhile = meanwhile;
}

/* MR rows of x with the TILE rows of weight from `n` on; long rows are cut as `linear_tile.h` cuts them. */
INLINE void tile_way(const int way, const int half, const int MR, const weights_t *weights, __m512 numbers, const bf16 *x,
                     const bf16 *bias, float *out, int64_t n, int64_t n_size) {
    const int64_t chunk = CHUNK_BYTES / (int64_t)sizeof(bf16), k_size = weights->k_size;
    const int rows = TILE / MR, NR = rows < ROWS_AT_ONCE ? rows : ROWS_AT_ONCE;
    for (int64_t end = n + TILE; n < end; n += rows) {
        vf total = vf_set(0.0f);
        for (int64_t k = 0; k < k_size; k += chunk) {
            vf sums[TILE];
            for (int row = 0; row < rows; row += NR)
                sum_columns(way, half, NR, MR, weights, numbers, x, n + row, k, k + chunk < k_size ? k + chunk : k_size,
                            sums + row, rows);
            if (k)
                total += sum_lanes(sums);
            else
                total = sum_lanes(sums);
        }
        finish_bf16_f32(rows, MR, total, bias ? bias + n : 0, out + n, MR, n_size);
    }
}

/* Rows [from, to) of weight, a multiple of TILE, with few rows of x. */
INLINE void multiply_way(const int way, const int half, const weights_t *weights, __m512 numbers, const bf16 *x,
                         const bf16 *bias, float *out, int64_t m_size, int64_t from, int64_t to, int64_t n_size) {
    const int64_t k_size = weights->k_size;
    for (int64_t n = from; n < to; n += TILE) {
        int64_t m = 0;
        for (; m + 4 <= m_size; m += 4)
            tile_way(way, half, 4, weights, numbers, x + m * k_size, bias, out + m * n_size, n, n_size);
        for (; m + 2 <= m_size; m += 2)
            tile_way(way, half, 2, weights, numbers, x + m * k_size, bias, out + m * n_size, n, n_size);
        if (m < m_size) tile_way(way, half, 1, weights, numbers, x + m * k_size, bias, out + m * n_size, n, n_size);
    }
}

#define EACH_WAY(DO) DO(LOOKED_UP) DO(LOOKED_UP_MINUS_ZERO) DO(LOOKED_UP_PLUS_MINIMUM) DO(WHOLE) DO(WHOLE_PLUS_MINIMUM) DO(FLOAT8)

static void decode_bf16(int kind, const weights_t *weights, int64_t from, int64_t to, bf16 *out) {
    const int way = way_of(kind, weights);
    const __m512 numbers = numbers_of(kind, way);
#define DO(way)                                                                  \
    case way:                                                                    \
        if (weights->group % BLOCK)                                              \
            decode_way(way, 1, weights, numbers, from, to, out);                 \
        else                                                                     \
            decode_way(way, 0, weights, numbers, from, to, out);                 \
        break;
    switch (way) { EACH_WAY(DO) }
#undef DO
}

static void multiply_packed_bf16(int kind, const weights_t *weights, const bf16 *x, const bf16 *bias, float *out,
                                 int64_t m_size, int64_t from, int64_t to, int64_t n_size) {
    const int way = way_of(kind, weights);
    const __m512 numbers = numbers_of(kind, way);
#define DO(way)                                                                                    \
    case way:                                                                                      \
        if (weights->group % BLOCK)                                                                \
            multiply_way(way, 1, weights, numbers, x, bias, out, m_size, from, to, n_size);        \
        else                                                                                       \
            multiply_way(way, 0, weights, numbers, x, bias, out, m_size, from, to, n_size);        \
        break;
    switch (way) { EACH_WAY(DO) }
#undef DO
}
