/* Portable SIMD through GCC vector extensions: VL float lanes, bfloat16 conversion, exp and reductions. */
#pragma once
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX__)
#define VL 8
#else
#define VL 4
#endif

#define INLINE static inline __attribute__((always_inline))

/* Lets the loader check that this library and torch share one OpenMP runtime, and so one thread pool. */
void *atom_openmp_runtime(void) { return (void *)&omp_get_max_threads; }

/* Asks for the line of memory at p, which is wanted soon. It goes to the L2: an L1 is full of what is computed with. */
INLINE void ask_for(const void *p) { __builtin_prefetch(p, 0, 2); }

typedef float vf __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(VL * 2), aligned(2), may_alias));
typedef uint16_t bf16;

INLINE vf vf_set(float x) { return x - (vf){0}; }
INLINE vi vi_set(int32_t x) { return x - (vi){0}; }
INLINE vf vf_load(const float *p) { return *(const vf *)p; }
INLINE void vf_store(float *p, vf x) { *(vf *)p = x; }
INLINE vf vf_select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
#if defined(__AVX512F__)
INLINE vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE float vf_hmax(vf x) { return _mm512_reduce_max_ps((__m512)x); }
#else
INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }

INLINE float vf_hmax(vf x) {
    float m = x[0];
    for (int i = 1; i < VL; i++) m = x[i] > m ? x[i] : m;
    return m;
}
#endif

/* a b + c, rounded once where the machine can. Of `c += a * b` GCC makes that or not by what else is in the loop. */
INLINE vf vf_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Sums halves into halves: the order is fixed, whatever the compiler. */
INLINE float vf_hsum(vf x) {
    float lane[VL];
    vf_store(lane, x);
    for (int width = VL / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

INLINE float bf16_to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

/* To the nearest, ties to even; NaN stays NaN. */
INLINE bf16 float_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* 0, 1, 2, ... */
INLINE vf vf_iota(void) {
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vf_load(lanes);
}

INLINE vu vu_widen(const uint16_t *p) {
#if VL == 16
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
#else
    return __builtin_convertvector(*(const vh *)p, vu);
#endif
}

INLINE vf vf_load_bf16(const bf16 *p) { return (vf)(vu_widen(p) << 16); }

#if defined(__AVX512BF16__)
/* The instruction rounds likewise, and flushes subnormal results to zero. */
INLINE void vf_store_bf16(bf16 *p, vf x) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
INLINE void vf_store_bf16(bf16 *p, vf x) {
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vi nan = x != x;
    rounded = (rounded & ~(vu)nan) | (0x7fc0 & (vu)nan);
#if VL == 16
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)rounded));
#else
    *(vh *)p = __builtin_convertvector(rounded, vh);
#endif
}
#endif

/* Floats under the names that macros over both element types make. */
typedef float f32;
INLINE float f32_to_float(f32 x) { return x; }
INLINE f32 float_to_f32(float x) { return x; }
INLINE vf vf_load_f32(const f32 *p) { return vf_load(p); }
INLINE void vf_store_f32(f32 *p, vf x) { vf_store(p, x); }

/* exp(x) within 2 ulp: exactly 1 at 0, 0 at -inf, inf at inf, NaN at NaN; what would be subnormal may be 0. */
INLINE vf vf_exp(vf x) {
    const vf log2e = vf_set(1.44269504088896341f);
#if VL == 16
    x = vf_max(vf_set(-200.0f), x); /* in this order NaN passes */
    vf n = (vf)_mm512_roundscale_ps((__m512)(x * log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vf magic = vf_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    vi tiny = x < -87.3f;
    x = vf_select(tiny, vf_set(-87.3f), x);
    x = vf_select(x > 89.0f, vf_set(89.0f), x);
    vf shifted = x * log2e + magic;
    vf n = shifted - magic;
#endif
    vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = vf_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
#if VL == 16
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    vf scale = (vf)(((vi)shifted << 23) + (vi)vf_set(1.0f)); /* 2^n */
    return vf_select(tiny, vf_set(0.0f), p * scale);
#endif
}

INLINE float scalar_exp(float x) { return vf_exp(vf_set(x))[0]; }
