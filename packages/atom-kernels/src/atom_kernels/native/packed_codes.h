/* Weights of eight or four bits with scales, and a block of them in registers as float32. */
#pragma once
#include "vector.h"

/* What a code is. Codes of four bits lie 32 columns to 16 bytes: the first 16 columns are the low halves. */
enum { INT8, INT4, E2M1, E4M3 };
#define BLOCK 32

/* Bytes of a block's codes. */
INLINE int64_t block_bytes(const int kind) { return kind == INT8 || kind == E4M3 ? BLOCK : BLOCK / 2; }

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

/* Whether a minimum is added: integers alone have one, so that kernels for other kinds are not made. */
INLINE int has_minima(const int kind, const weights_t *weights) {
    return (kind == INT4 || kind == INT8) && weights->minimum;
}

/* The weights without their first rows. */
INLINE weights_t weights_from(int kind, const weights_t *weights, int64_t row) {
    const int64_t k_size = weights->k_size, groups = row * (k_size / weights->group);
    weights_t rest = *weights;
    rest.codes += row * (k_size / BLOCK) * block_bytes(kind);
    rest.scale += groups;
    if (rest.minimum) rest.minimum += groups;
    if (rest.zero) rest.zero += groups;
    return rest;
}
