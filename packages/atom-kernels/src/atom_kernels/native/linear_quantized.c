/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] in float32, with weights of eight or four bits and scales.
 *
 * Each thread decodes a panel of weight rows to float32, which stays in its caches, and multiplies it as `linear.h` does:
 * a row of the result has the bits that the decoded weights give, whatever the other rows of x and their number. */
#include "linear.h"

#include <stdlib.h>

/* What a code is. Codes of four bits lie 32 columns to 16 bytes: the first 16 columns are the low halves. */
enum { INT8, INT4, E2M1, E4M3 };
#define BLOCK 32

typedef struct {
    const uint8_t *codes;
    const float *scale;   /* [N, groups] */
    const float *minimum; /* [N, groups], added; or null */
    const uint8_t *zero;  /* [N, groups], taken from the code; or null, for 8 */
    int64_t k_size, group;
} weights_t;

/* Twice the numbers that codes of e2m1 stand for; their scales are halved. */
static const int8_t doubled_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#if defined(__AVX2__)
/* The codes of 16 bytes, the low halves first. */
INLINE void split(const uint8_t *codes, __m128i *low, __m128i *high) {
    const __m128i packed = _mm_loadu_si128((const __m128i *)codes), mask = _mm_set1_epi8(15);
    *low = _mm_and_si128(packed, mask);
    *high = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
}

INLINE void look_up_e2m1(const uint8_t *codes, int8_t *values) {
    const __m128i table = _mm_loadu_si128((const __m128i *)doubled_e2m1);
    __m128i low, high;
    split(codes, &low, &high);
    _mm_store_si128((__m128i *)values, _mm_shuffle_epi8(table, low));
    _mm_store_si128((__m128i *)(values + 16), _mm_shuffle_epi8(table, high));
}

INLINE void subtract_zeros(const uint8_t *codes, const uint8_t *zeros, int8_t *values) {
    __m128i low, high;
    split(codes, &low, &high);
    _mm_store_si128((__m128i *)values, _mm_sub_epi8(low, _mm_set1_epi8((char)zeros[0])));
    _mm_store_si128((__m128i *)(values + 16), _mm_sub_epi8(high, _mm_set1_epi8((char)zeros[1])));
}
#else
INLINE void look_up_e2m1(const uint8_t *codes, int8_t *values) {
    for (int i = 0; i < 16; i++) {
        values[i] = doubled_e2m1[codes[i] & 15];
        values[i + 16] = doubled_e2m1[codes[i] >> 4];
    }
}

INLINE void subtract_zeros(const uint8_t *codes, const uint8_t *zeros, int8_t *values) {
    for (int i = 0; i < 16; i++) {
        values[i] = (int8_t)((codes[i] & 15) - zeros[0]);
        values[i + 16] = (int8_t)((codes[i] >> 4) - zeros[1]);
    }
}
#endif

#if VL == 16
INLINE vi widen_bytes(const void *p) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi widen_signed(const void *p) { return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
#elif defined(__AVX2__)
INLINE vi widen_bytes(const void *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE vi widen_signed(const void *p) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
#else
INLINE vi widen_bytes(const void *p) {
    vi wide;
    for (int i = 0; i < VL; i++) wide[i] = ((const uint8_t *)p)[i];
    return wide;
}

INLINE vi widen_signed(const void *p) {
    vi wide;
    for (int i = 0; i < VL; i++) wide[i] = ((const int8_t *)p)[i];
    return wide;
}
#endif

/* A float32 whose exponent is too small by 120: multiplying by 2^120 mends it, of subnormal numbers as well. */
INLINE vf decode_e4m3(const uint8_t *codes) {
    vi bits = widen_bytes(codes);
    return (vf)((bits & 0x7f) << 20 | (bits & 0x80) << 24) * 0x1p120f;
}

/* One block of a row: the halves may be of two groups. */
INLINE void decode_block(const int kind, const uint8_t *codes, const float *scales, const float *minima,
                         const uint8_t *zeros, float *out) {
    int8_t decoded[BLOCK] __attribute__((aligned(16)));
    const int8_t *values = kind == INT8 ? (const int8_t *)codes : decoded;
    if (kind == E2M1) look_up_e2m1(codes, decoded);
    if (kind == INT4) subtract_zeros(codes, zeros, decoded);
    for (int i = 0; i < BLOCK; i += VL) {
        const int half = i / 16;
        vf value = kind == E4M3 ? decode_e4m3(codes + i) : __builtin_convertvector(widen_signed(values + i), vf);
        value = value * scales[half];
        if (minima) value = value + minima[half];
        vf_store(out + i, value);
    }
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
                decode_block(kind, codes, scales, minima, none, out);
        } else {
            const uint8_t *zero = weights->zero;
            const uint8_t zeros[2] = {zero ? zero[g] : 8, zero ? zero[second] : 8};
            for (int64_t i = 0; i < blocks; i++, codes += bytes, out += BLOCK)
                decode_block(kind, codes, scales, 0, zeros, out);
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
    rows = m_size <= 2 || rows < TILE ? TILE : rows > PANEL_ROWS ? PANEL_ROWS : rows;
    const int64_t tiles = n_size / TILE, left = n_size - tiles * TILE;
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t first = tiles * thread / threads * TILE, last = tiles * (thread + 1) / threads * TILE;
        float *panel = panel_of_thread(rows * k_size);
        failed |= !panel;
        for (int64_t from = first; panel && from < last; from += rows) {
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
