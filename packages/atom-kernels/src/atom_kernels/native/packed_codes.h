/* Weights of eight or four bits with scales, and a block of them in registers as float32. */
#pragma once
#include "ahead.h"

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
static const float doubled_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* VL bytes, each in a lane of its own. */
#if defined(__AVX2__)
#if VL == 16
INLINE vi widen_bytes(const uint8_t *p) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi widen_signed(const uint8_t *p) { return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
#else
INLINE vi widen_bytes(const uint8_t *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE vi widen_signed(const uint8_t *p) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
#endif
#else
INLINE vi widen_bytes(const uint8_t *p) {
    vi wide;
    for (int i = 0; i < VL; i++) wide[i] = p[i];
    return wide;
}

INLINE vi widen_signed(const uint8_t *p) {
    vi wide;
    for (int i = 0; i < VL; i++) wide[i] = (int8_t)p[i];
    return wide;
}
#endif

/* Twice the numbers of VL codes of e2m1: a lane looks up its own. */
#if VL == 16
INLINE vf look_up_e2m1(vi codes) { return (vf)_mm512_permutexvar_ps((__m512i)codes, (__m512)vf_load(doubled_e2m1)); }
#elif defined(__AVX2__)
INLINE vf look_up_e2m1(vi codes) {
    const vf size = (vf)_mm256_permutevar8x32_ps((__m256)vf_load(doubled_e2m1), (__m256i)codes);
    return (vf)((vi)size | (codes & 8) << 28);
}
#else
INLINE vf look_up_e2m1(vi codes) {
    vf numbers;
    for (int i = 0; i < VL; i++) numbers[i] = doubled_e2m1[codes[i]];
    return numbers;
}
#endif

/* A float32 whose exponent is too small by 120: multiplying by 2^120 mends it, of subnormal numbers as well. */
INLINE vf decode_e4m3(vi codes) { return (vf)((codes & 0x7f) << 20 | (codes & 0x80) << 24) * 0x1p120f; }

/* VL codes of half a block as floats, from column `i` of that half on, without their scale. Two codes of four bits are
 * taken out of lanes that hold both: with bytes there would be more to move than to compute. */
INLINE vf decode_codes(const int kind, const uint8_t *codes, const int half, const int i, uint8_t zero) {
    if (kind == INT8) return __builtin_convertvector(widen_signed(codes + half * 16 + i), vf);
    if (kind == E4M3) return decode_e4m3(widen_bytes(codes + half * 16 + i));
    vi values = widen_bytes(codes + i);
    if (half)
        values >>= 4;
    else
        values &= 15;
    if (kind == E2M1) return look_up_e2m1(values);
    return __builtin_convertvector(values - (int32_t)zero, vf);
}

/* One block of a row, in registers: the halves may be of two groups. */
INLINE void decode_block(const int kind, const uint8_t *codes, const float *scales, const float *minima,
                         const uint8_t *zeros, vf out[BLOCK / VL]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += VL) {
            vf value = decode_codes(kind, codes, half, i, zeros[half]) * scales[half];
            if (minima) value = value + minima[half];
            out[(half * 16 + i) / VL] = value;
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

/* Rounds a thread's outputs of all rows of x, where `rounded` is asked for. */
static inline void round_share(const float *out, bf16 *rounded, int64_t m_size, int64_t n_size, int64_t from, int64_t to) {
    for (int64_t m = 0; rounded && m < m_size; m++) {
        int64_t n = m * n_size + from, end = m * n_size + to;
        for (; n + VL <= end; n += VL) vf_store_bf16(rounded + n, vf_load(out + n));
        for (; n < end; n++) rounded[n] = float_to_bf16(out[n]);
    }
}
