/* Adds up the lanes of as many registers as one has lanes. */
#pragma once
#include "vector.h"

/* Sums in a tile: as many as a register has lanes, so that their totals fill one. */
#define TILE VL

#if VL == 16
INLINE __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }

/* Lane i of the result is the sum of the lanes of v[i]. */
INLINE vf sum_lanes(const vf v[TILE]) {
    __m512 pairs[8], quads[4];
    for (int i = 0; i < 8; i++) {
        __m512 a = (__m512)v[2 * i], b = (__m512)v[2 * i + 1];
        pairs[i] = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        quads[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    /* Each 128-bit lane of quads[i] now holds partial sums of v[4i .. 4i+3]. */
    __m512 left = add(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    __m512 right = add(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return (vf)add(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd));
}
#elif VL == 8
/* Lane i of the result is the sum of the lanes of v[i], halves added to halves as `vf_hsum` does. */
INLINE vf sum_lanes(const vf v[TILE]) {
    __m256 halves[4], quarters[2];
    for (int i = 0; i < 4; i++) {
        __m256 a = (__m256)v[i], b = (__m256)v[i + 4];
        halves[i] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    /* halves[i] holds four partial sums of v[i], then four of v[i + 4]. */
    for (int i = 0; i < 2; i++) {
        __m256d a = _mm256_castps_pd(halves[2 * i]), b = _mm256_castps_pd(halves[2 * i + 1]);
        quarters[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                                    _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return (vf)_mm256_add_ps(_mm256_shuffle_ps(quarters[0], quarters[1], 0x88),
                             _mm256_shuffle_ps(quarters[0], quarters[1], 0xdd));
}
#else
INLINE vf sum_lanes(const vf v[TILE]) {
    float sums[TILE];
    for (int i = 0; i < TILE; i++) sums[i] = vf_hsum(v[i]);
    return vf_load(sums);
}
#endif
