/* float8 e4m3fn in bytes: sign, four bits of exponent (bias 7), three of mantissa; no infinity, 0x7f and 0xff are NaN. */
#pragma once
#include "vector.h"

#define E4M3_LARGEST 448.0f

/* VL bytes, each in a lane of its own. */
INLINE vu widen_e4m3(const uint8_t *p) {
#if VL == 16
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX2__)
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    vu wide;
    for (int i = 0; i < VL; i++) wide[i] = p[i];
    return wide;
#endif
}

/* A number whose exponent is too small: multiplying by a power of two mends it, of subnormal numbers as well. As
 * float16, which is converted quickly where there are instructions for it; as float32, subnormal numbers take CPUs long. */
INLINE vf e4m3_to_vf(vu code) {
    vu magnitude = code & 0x7f;
#if VL == 16
    vu half = magnitude << 7 | (code & 0x80) << 8;
    vf value = (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)half)) * 0x1p8f;
#else
    vf value = (vf)(magnitude << 20 | (code & 0x80) << 24) * 0x1p120f;
#endif
    return (vf)((vu)value | (vu)(magnitude == 0x7f));
}

INLINE vf vf_load_e4m3(const uint8_t *p) { return e4m3_to_vf(widen_e4m3(p)); }

#if VL == 8 && defined(__AVX2__) && defined(__F16C__)
#define E4M3_BLOCKS 1 /* tiles are packed by the functions below, NaN apart: a look at the bytes tells where it is */

/* 16 codes that are no NaN: the first 8 numbers to `first`, the others to `second`. */
INLINE void decode_finite_e4m3(__m128i codes, float *first, float *second) {
    __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    half = _mm256_and_si256(half, _mm256_set1_epi16((short)0xbf80));
    vf_store(first, (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(half)) * 0x1p8f);
    vf_store(second, (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)) * 0x1p8f);
}

/* The largest of what each byte holds without its sign, doubled: 0xfe where any is NaN. */
INLINE __m128i largest_e4m3(__m128i so_far, __m128i codes) {
    return _mm_max_epu8(so_far, _mm_add_epi8(codes, codes));
}

INLINE int any_e4m3_nan(__m128i largest) {
    return _mm_movemask_epi8(_mm_cmpeq_epi8(largest, _mm_set1_epi8((char)0xfe))) != 0;
}

/* The numbers at `at` of 8 rows, transposed as bytes and then decoded: `out + i * out_stride` is a column. */
INLINE __m128i transpose_e4m3(const uint8_t *const *in, int at, float *out, int64_t out_stride, __m128i largest) {
#define ROW(i) _mm_loadl_epi64((const __m128i *)(in[i] + at))
    __m128i a = _mm_unpacklo_epi8(ROW(0), ROW(1)), b = _mm_unpacklo_epi8(ROW(2), ROW(3));
    __m128i c = _mm_unpacklo_epi8(ROW(4), ROW(5)), d = _mm_unpacklo_epi8(ROW(6), ROW(7));
#undef ROW
    __m128i first_low = _mm_unpacklo_epi16(a, b), first_high = _mm_unpackhi_epi16(a, b);
    __m128i last_low = _mm_unpacklo_epi16(c, d), last_high = _mm_unpackhi_epi16(c, d);
    __m128i columns[4] = {_mm_unpacklo_epi32(first_low, last_low), _mm_unpackhi_epi32(first_low, last_low),
                          _mm_unpacklo_epi32(first_high, last_high), _mm_unpackhi_epi32(first_high, last_high)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        largest = largest_e4m3(largest, columns[i]);
        decode_finite_e4m3(columns[i], out + 2 * i * out_stride, out + (2 * i + 1) * out_stride);
    }
    return largest;
}
#endif

/* To the nearest, ties to even, beyond the largest number to the largest; NaN stays NaN. */
INLINE vu vf_to_e4m3(vf x) {
    vi nan = x != x;
    vu bits = (vu)x, sign = bits >> 24 & 0x80;
    vf size = (vf)(bits & 0x7fffffff);
    size = vf_select(size > E4M3_LARGEST, vf_set(E4M3_LARGEST), size);
    bits = (vu)size;
    /* Adding 2^14 rounds to a multiple of 2^-9, the smallest subnormal number, in the low bits. */
    vu subnormal = (vu)(size + 0x1p14f) - (141u << 23);
    vu normal = (bits - (120u << 23) + 0x7ffff + (bits >> 20 & 1)) >> 20;
    vu code = (vu)vf_select(size < 0x1p-6f, (vf)subnormal, (vf)normal);
    return sign | (vu)vf_select(nan, (vf)((vu){0} + 0x7f), (vf)code);
}

INLINE void vf_store_e4m3(uint8_t *p, vf x) {
    vu code = vf_to_e4m3(x);
    for (int i = 0; i < VL; i++) p[i] = (uint8_t)code[i];
}

#define SMALLEST_SCALE 1e-6f /* of a row of zeros */

/* Stores a row divided by `scale`; NULL is 1. Where there is a `row_scale`, it becomes the one that makes the row's
 * largest number the largest in e4m3, and is used instead. */
static inline void store_e4m3_row(const float *row, int64_t n, uint8_t *out, const float *scale, float *row_scale) {
    float divisor = scale ? *scale : 1;
    if (row_scale) {
        float largest = 0;
        for (int64_t d = 0; d < n; d++) largest = fmaxf(largest, fabsf(row[d]));
        divisor = *row_scale = fmaxf(largest / E4M3_LARGEST, SMALLEST_SCALE);
    }
    int64_t d = 0;
    for (; d + VL <= n; d += VL) vf_store_e4m3(out + d, vf_load(row + d) / divisor);
    for (; d < n; d++) out[d] = (uint8_t)vf_to_e4m3(vf_set(row[d] / divisor))[0];
}
