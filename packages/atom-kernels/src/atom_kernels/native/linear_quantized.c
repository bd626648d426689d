/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] in float32, with weights of eight or four bits and scales.
 *
 * For few rows of x, weights are multiplied in the registers that they are decoded into. For more, each thread decodes a
 * panel of weight rows to float32, which stays in its caches, and multiplies it as `linear.h` does. Both add in the order
 * of `linear.h`: a row of the result has the bits that the decoded weights give, whatever the other rows and their number. */
#include "linear.h"

#include <stdlib.h>

/* What a code is. Codes of four bits lie 32 columns to 16 bytes: the first 16 columns are the low halves. */
enum { INT8, INT4, E2M1, E4M3 };
#define BLOCK 32
/* So many rows of x need no panel. */
#define MAX_FEW_ROWS 4

typedef struct {
    const uint8_t *codes;
    const float *scale;   /* [N, groups] */
    const float *minimum; /* [N, groups], added; or null */
    const uint8_t *zero;  /* [N, groups], taken from the code; or null, for 8 */
    int64_t k_size, group;
} weights_t;

/* Twice the numbers that codes of e2m1 stand for; their scales are halved. */
static const int8_t doubled_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 16 codes, or the integers that they stand for, and VL of those from `i` on as floats. */
#if defined(__AVX2__)
typedef __m128i codes_t;
INLINE codes_t load_codes(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE codes_t low_halves(codes_t packed) { return _mm_and_si128(packed, _mm_set1_epi8(15)); }
INLINE codes_t high_halves(codes_t packed) { return low_halves(_mm_srli_epi16(packed, 4)); }
INLINE codes_t look_up_e2m1(codes_t codes) { return _mm_shuffle_epi8(load_codes((const uint8_t *)doubled_e2m1), codes); }
INLINE codes_t subtract(codes_t codes, uint8_t zero) { return _mm_sub_epi8(codes, _mm_set1_epi8((char)zero)); }
#if VL == 16
INLINE vi signed_from(codes_t codes, const int i) { return (vi)_mm512_cvtepi8_epi32(codes); }
INLINE vi unsigned_from(codes_t codes, const int i) { return (vi)_mm512_cvtepu8_epi32(codes); }
#else
INLINE codes_t moved_down(codes_t codes, const int i) { return i ? _mm_unpackhi_epi64(codes, codes) : codes; }
INLINE vi signed_from(codes_t codes, const int i) { return (vi)_mm256_cvtepi8_epi32(moved_down(codes, i)); }
INLINE vi unsigned_from(codes_t codes, const int i) { return (vi)_mm256_cvtepu8_epi32(moved_down(codes, i)); }
#endif
#else
typedef uint8_t codes_t __attribute__((vector_size(16), aligned(1), may_alias));
INLINE codes_t load_codes(const uint8_t *p) { return *(const codes_t *)p; }
INLINE codes_t low_halves(codes_t packed) { return packed & 15; }
INLINE codes_t high_halves(codes_t packed) { return packed >> 4; }
INLINE codes_t subtract(codes_t codes, uint8_t zero) { return codes - zero; }

INLINE codes_t look_up_e2m1(codes_t codes) {
    for (int i = 0; i < 16; i++) codes[i] = (uint8_t)doubled_e2m1[codes[i]];
    return codes;
}

INLINE vi signed_from(codes_t codes, const int from) {
    vi wide;
    for (int i = 0; i < VL; i++) wide[i] = (int8_t)codes[from + i];
    return wide;
}

INLINE vi unsigned_from(codes_t codes, const int from) {
    vi wide;
    for (int i = 0; i < VL; i++) wide[i] = codes[from + i];
    return wide;
}
#endif

/* A float32 whose exponent is too small by 120: multiplying by 2^120 mends it, of subnormal numbers as well. */
INLINE vf decode_e4m3(vi codes) { return (vf)((codes & 0x7f) << 20 | (codes & 0x80) << 24) * 0x1p120f; }

/* One block of a row, in registers: the halves may be of two groups. */
INLINE void decode_block(const int kind, const uint8_t *codes, const float *scales, const float *minima,
                         const uint8_t *zeros, vf out[BLOCK / VL]) {
    const codes_t first = load_codes(codes);
    for (int half = 0; half < 2; half++) {
        codes_t values;
        if (kind == INT8 || kind == E4M3)
            values = half ? load_codes(codes + 16) : first;
        else
            values = half ? high_halves(first) : low_halves(first);
        if (kind == E2M1) values = look_up_e2m1(values);
        if (kind == INT4) values = subtract(values, zeros[half]);
        for (int i = 0; i < 16; i += VL) {
            vf value = kind == E4M3 ? decode_e4m3(unsigned_from(values, i))
                                    : __builtin_convertvector(signed_from(values, i), vf);
            value = value * scales[half];
            if (minima) value = value + minima[half];
            out[(half * 16 + i) / VL] = value;
        }
    }
}

INLINE void store_block(const int kind, const uint8_t *codes, const float *scales, const float *minima,
                        const uint8_t *zeros, float *out) {
    vf block[BLOCK / VL];
    decode_block(kind, codes, scales, minima, zeros, block);
    for (int i = 0; i < BLOCK / VL; i++) vf_store(out + i * VL, block[i]);
}

/* `wide`: a group has whole blocks; else it is half a block. */
INLINE void decode_rows(const int kind, const int wide, const weights_t *weights, int64_t from, int64_t to, float *out) {
    const int64_t group = weights->group, groups = weights->k_size / group, blocks = wide ? group / BLOCK : 1;
    const int64_t bytes = kind == INT8 || kind == E4M3 ? BLOCK : BLOCK / 2;
    const uint8_t *codes = weights->codes + from * (weights->k_size / BLOCK) * bytes;
    for (int64_t g = from * groups; g < to * groups; g += wide ? 1 : 2) {
        const int64_t second = wide ? g : g + 1;
        const float scales[2] = {weights->scale[g], weights->scale[second]};
        if (weights->minimum) {
            const float minima[2] = {weights->minimum[g], weights->minimum[second]};
            const uint8_t none[2] = {0, 0};
            for (int64_t i = 0; i < blocks; i++, codes += bytes, out += BLOCK)
                store_block(kind, codes, scales, minima, none, out);
        } else {
            const uint8_t *zero = weights->zero;
            const uint8_t zeros[2] = {zero ? zero[g] : 8, zero ? zero[second] : 8};
            for (int64_t i = 0; i < blocks; i++, codes += bytes, out += BLOCK)
                store_block(kind, codes, scales, 0, zeros, out);
        }
    }
}

#define DECODE(kind)                                           \
    case kind:                                                 \
        if (weights->group % BLOCK)                            \
            decode_rows(kind, 0, weights, from, to, out);      \
        else                                                   \
            decode_rows(kind, 1, weights, from, to, out);      \
        break;

static void decode(int kind, const weights_t *weights, int64_t from, int64_t to, float *out) {
    switch (kind) {
        DECODE(INT8)
        DECODE(INT4)
        DECODE(E2M1)
        DECODE(E4M3)
    }
}

/* A tile as `linear_tile.h` makes it, of rows from `n` on and columns [from, to) of MR rows of x. */
INLINE vf packed_tile(const int kind, const int wide, const int minima, const int NR, const int MR,
                      const weights_t *weights, const float *x, int64_t n, int64_t from, int64_t to) {
    const int64_t group = weights->group, groups = weights->k_size / group;
    const int64_t bytes = kind == INT8 || kind == E4M3 ? BLOCK : BLOCK / 2, row_bytes = weights->k_size / BLOCK * bytes;
    const uint8_t *codes = weights->codes + n * row_bytes + from / BLOCK * bytes;
    vf sums[TILE];
    for (int i = 0; i < TILE; i++) sums[i] = vf_set(0.0f);
    /* The group of a column, and the columns that are left of it: dividing for each block would take longer than the block. */
    int64_t g = n * groups + from / group, left = group - from % group;
    for (int64_t k = from; k < to; k += BLOCK, codes += bytes) {
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
            __builtin_prefetch(codes + (row + NR) * row_bytes);
            for (int i = 0; i < BLOCK / VL; i++)
                for (int m = 0; m < MR; m++)
                    sums[m * NR + row] += vf_load(x + m * weights->k_size + k + i * VL) * block[i];
        }
        left -= BLOCK;
        if (left <= 0) {
            g += wide ? 1 : 2;
            left = group;
        }
    }
    return sum_lanes(sums);
}

/* The weights without their first rows. */
INLINE weights_t weights_from(int kind, const weights_t *weights, int64_t row) {
    const int64_t k_size = weights->k_size, groups = row * (k_size / weights->group);
    weights_t rest = *weights;
    rest.codes += row * (kind == INT8 || kind == E4M3 ? k_size : k_size / 2);
    rest.scale += groups;
    if (rest.minimum) rest.minimum += groups;
    if (rest.zero) rest.zero += groups;
    return rest;
}

/* MR rows of x with the TILE / MR rows of weight from `n` on; long rows are cut as `linear_tile.h` cuts them. */
INLINE void packed_product(const int kind, const int wide, const int minima, const int MR, const weights_t *weights,
                           const float *x, const float *bias, float *out, int64_t n, int64_t n_size) {
    const int64_t chunk = CHUNK_BYTES / (int64_t)sizeof(float), k_size = weights->k_size;
    const int NR = TILE / MR;
    vf total = packed_tile(kind, wide, minima, NR, MR, weights, x, n, 0, k_size < chunk ? k_size : chunk);
    for (int64_t k = chunk; k < k_size; k += chunk)
        total += packed_tile(kind, wide, minima, NR, MR, weights, x, n, k, k + chunk < k_size ? k + chunk : k_size);
    finish_f32(NR, MR, total, bias ? bias + n : 0, out + n, MR, n_size);
}

/* Rows [from, to) of weight, a multiple of TILE. Rows of x go in pairs, so that two share what is decoded. */
INLINE void packed_rows(const int kind, const int wide, const int minima, const weights_t *weights, const float *x,
                        const float *bias, float *out, int64_t m_size, int64_t from, int64_t to, int64_t n_size) {
    const int64_t k_size = weights->k_size, paired = m_size / 2 * 2;
    for (int64_t n = from; n < to; n += TILE) {
        for (int64_t m = 0; m < paired; m += 2)
            for (int half = 0; half < TILE; half += TILE / 2)
                packed_product(kind, wide, minima, 2, weights, x + m * k_size, bias, out + m * n_size, n + half, n_size);
        if (paired < m_size)
            packed_product(kind, wide, minima, 1, weights, x + paired * k_size, bias, out + paired * n_size, n, n_size);
    }
}

#define MULTIPLY(kind)                                                                   \
    case kind:                                                                           \
        if (kind == INT4 && weights->minimum && weights->group % BLOCK)                  \
            packed_rows(kind, 0, 1, weights, x, bias, out, m_size, from, to, n_size);    \
        else if (kind == INT4 && weights->minimum)                                       \
            packed_rows(kind, 1, 1, weights, x, bias, out, m_size, from, to, n_size);    \
        else if (weights->group % BLOCK)                                                 \
            packed_rows(kind, 0, 0, weights, x, bias, out, m_size, from, to, n_size);    \
        else                                                                             \
            packed_rows(kind, 1, 0, weights, x, bias, out, m_size, from, to, n_size);    \
        break;

static void multiply_packed(int kind, const weights_t *weights, const float *x, const float *bias, float *out,
                            int64_t m_size, int64_t from, int64_t to, int64_t n_size) {
    switch (kind) {
        MULTIPLY(INT8)
        MULTIPLY(INT4)
        MULTIPLY(E2M1)
        MULTIPLY(E4M3)
    }
}
#undef MULTIPLY

/* A thread's panel. It grows with the longest rows and is kept: mapping it anew at each call would cost more than a call. */
static float *panel_of_thread(int64_t size) {
    static __thread float *panel;
    static __thread int64_t held;
    if (size > held) {
        free(panel);
        panel = aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64);
        held = panel ? size : 0;
    }
    return panel;
}

/* Returns whether there was memory for the panels. */
int64_t linear_quantized(int64_t kind, const float *x, const uint8_t *codes, const float *scale, const float *minimum,
                         const uint8_t *zero, const float *bias, float *out, int64_t m_size, int64_t k_size,
                         int64_t n_size, int64_t group) {
    const weights_t weights = {codes, scale, minimum, zero, k_size, group};
    int64_t rows = PANEL_BYTES / ((int64_t)sizeof(float) * k_size) / TILE * TILE;
    rows = rows < TILE ? TILE : rows > PANEL_ROWS ? PANEL_ROWS : rows;
    const int few = m_size <= MAX_FEW_ROWS;
    const int64_t tiles = n_size / TILE, left = n_size - tiles * TILE;
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t first = tiles * thread / threads * TILE, last = tiles * (thread + 1) / threads * TILE;
        float *panel = panel_of_thread((few ? TILE : rows) * k_size);
        failed |= !panel;
        if (few) multiply_packed((int)kind, &weights, x, bias, out, m_size, first, last, n_size);
        for (int64_t from = first; !few && panel && from < last; from += rows) {
            int64_t to = from + rows < last ? from + rows : last;
            decode((int)kind, &weights, from, to, panel);
            panel_f32(x, panel - from * k_size, bias, out, from, to, m_size, k_size, n_size);
        }
        if (panel && left && thread == threads - 1) {
            const int64_t from = tiles * TILE;
            decode((int)kind, &weights, from, n_size, panel);
            for (int64_t m = 0; m < m_size; m++)
                for (int64_t n = 0; n < left; n++)
                    out[m * n_size + from + n] =
                        single_f32(x + m * k_size, panel + n * k_size, bias ? bias + from + n : 0, k_size);
        }
    }
    return !failed;
}
