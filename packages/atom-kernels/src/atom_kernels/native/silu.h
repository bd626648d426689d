/* silu of vectors of floats. */
#pragma once
#include "vector.h"

/* x / (1 + exp(-x)). */
#if defined(__AVX512F__)
INLINE vf vf_silu(vf value) {
    __m512 x = (__m512)value;
    /* exp must stay finite; NaN passes as second operand. Further down the limit is 0 (and NaN still passes). */
    __m512 y = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_sub_ps(_mm512_setzero_ps(), x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(1.44269504088896341f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), y);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    __m512 denominator = _mm512_add_ps(_mm512_scalef_ps(p, n), _mm512_set1_ps(1.0f));
    /* 14 bits of the reciprocal, doubled by one step of Newton: half the time of a division. */
    __m512 inverse = _mm512_rcp14_ps(denominator);
    __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-88.0f), _CMP_NLT_UQ);
    inverse = _mm512_maskz_mul_ps(kept, inverse, _mm512_fnmadd_ps(denominator, inverse, _mm512_set1_ps(2.0f)));
    return (vf)_mm512_mul_ps(x, inverse);
}
#else
INLINE vf vf_silu(vf x) {
    /* sigmoid(|x|) and sigmoid(-|x|) share a denominator, and exp never overflows. */
    vf decay = vf_exp(vf_select(x < 0.0f, x, -x));
    return x * vf_select(x < 0.0f, decay, vf_set(1.0f)) / (decay + 1.0f);
}
#endif
