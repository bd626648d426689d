/* Packed weights with an output in each lane of a register, and how they become bfloat16.
 *
 * Codes lie [N / 16][K / 8] in steps of 16 outputs and 8 columns; those past the last output are zeros. A step has
 *   four bits   16 outputs x 2 columns of words: four codes, of columns 0, 2, 4 and 6 (of 1, 3, 5 and 7 in the next)
 *   eight bits  2 halves of columns x 4 x 4 outputs, of which four outputs have [2 pairs][4 outputs][2 columns]
 * so that 16 outputs x 2 columns of bfloat16, which one instruction multiplies, come out of a few others.
 *
 * Numbers that codes stand for are exact in bfloat16. Scales and minima are no part of them: they meet the sums of groups. */
#pragma once
#include "packed_codes.h"

#define STEP_COLUMNS 8
#define PAIRS (STEP_COLUMNS / 2)

/* What a step is read from. A panel has been decoded. */
enum { NIBBLES, BYTES, PANEL };

INLINE int source_of(const int kind) { return kind == INT4 || kind == E2M1 ? NIBBLES : BYTES; }
INLINE int64_t step_bytes(const int source) { return source == NIBBLES ? 64 : source == BYTES ? 128 : 256; }

typedef struct {
    const uint8_t *codes;
    const void *scale, *minimum; /* [N / 16][groups][16]; the last may be null */
    int64_t narrow;              /* whether these are float16, or else float32 */
    int64_t k_size, group;
} lanes_t;

/* The numbers of codes in bfloat16. Four bits look up words; of eight bits seven look up two bytes, and one is the sign. */
typedef struct {
    __m512i words, low[2], high[2];
} numbers_t;

/* Numbers of codes [first, first + 16) that are not negative. A code c of int8 has its number and a half: a negative one is
 * the negative of another, so that 7 bits tell all of them. What is too much is taken off the sum. */
static vf number_of_codes(int kind, int first, int minima) {
    const vf codes = vf_iota() + (float)first;
    if (kind == E2M1) return vf_load(doubled_e2m1);
    if (kind == E4M3) return decode_e4m3(__builtin_convertvector(codes, vi));
    if (kind == INT8) return codes + 0.5f;
    return codes - vf_set(minima ? 0.0f : 8.0f);
}

static numbers_t numbers_of(int kind, int minima) {
    numbers_t numbers = {0};
    if (source_of(kind) == NIBBLES) {
        /* A look-up sees five bits: the fifth is of the next code, and of no account. */
        const __m512 all = (__m512)number_of_codes(kind, 0, minima);
        numbers.words = (__m512i)_mm512_cvtne2ps_pbh(all, all);
        return numbers;
    }
    uint8_t low[128], high[128];
    for (int first = 0; first < 128; first += VL) {
        const vu bits = (vu)number_of_codes(kind, first, minima);
        _mm_storeu_si128((__m128i *)(low + first), _mm512_cvtepi32_epi8((__m512i)(bits >> 16)));
        _mm_storeu_si128((__m128i *)(high + first), _mm512_cvtepi32_epi8((__m512i)(bits >> 24)));
    }
    for (int i = 0; i < 2; i++) {
        numbers.low[i] = _mm512_loadu_si512(low + 64 * i);
        numbers.high[i] = _mm512_loadu_si512(high + 64 * i);
    }
    return numbers;
}

#if defined(__AVX512VBMI__)
/* 64 codes of eight bits as two registers of bfloat16. */
INLINE void from_bytes(const int kind, __m512i codes, const numbers_t *numbers, __m512i out[2]) {
    const __m512i low = _mm512_permutex2var_epi8(numbers->low[0], codes, numbers->low[1]);
    const __m512i high = _mm512_permutex2var_epi8(numbers->high[0], codes, numbers->high[1]);
    const __m512i with_sign = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* a | b & c */
    out[0] = _mm512_unpacklo_epi8(low, with_sign);
    out[1] = _mm512_unpackhi_epi8(low, with_sign);
}
#else
/* The number of a code in the highest byte of each lane. */
INLINE __m512i from_highest(const int kind, __m512i codes) {
    const vi size = (vi)_mm512_srli_epi32(_mm512_slli_epi32(codes, 1), 25);
    const vf halves = __builtin_convertvector(size, vf) + 0.5f;
    const __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi32((int)0x80000000));
    return _mm512_or_si512((__m512i)(kind == E4M3 ? decode_e4m3(size) : halves), sign);
}

INLINE void from_bytes(const int kind, __m512i codes, const numbers_t *numbers, __m512i out[2]) {
    const __m512i zero = _mm512_setzero_si512();
    for (int i = 0; i < 2; i++) {
        const __m512i words = i ? _mm512_unpackhi_epi8(zero, codes) : _mm512_unpacklo_epi8(zero, codes);
        const __m512i even = from_highest(kind, _mm512_slli_epi32(words, 16)), odd = from_highest(kind, words);
        out[i] = _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
    }
}
#endif

/* A step's numbers, a register for each pair of columns. */
INLINE void load_step(const int source, const int kind, const uint8_t *step, const numbers_t *numbers, __m512i out[PAIRS]) {
    if (source == NIBBLES) {
        const __m512i codes = _mm512_loadu_si512(step);
        out[0] = _mm512_permutexvar_epi16(codes, numbers->words);
        out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), numbers->words);
        out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), numbers->words);
        out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), numbers->words);
    } else if (source == BYTES) {
        from_bytes(kind, _mm512_loadu_si512(step), numbers, out);
        from_bytes(kind, _mm512_loadu_si512(step + 64), numbers, out + 2);
    } else {
        for (int pair = 0; pair < PAIRS; pair++) out[pair] = _mm512_loadu_si512(step + 64 * pair);
    }
}

/* What 16 outputs have for a group: scales or minima. */
INLINE __m512 load_of_group(const lanes_t *weights, const void *of_groups, int64_t at) {
    if (weights->narrow) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)of_groups + at));
    return _mm512_loadu_ps((const float *)of_groups + at * VL);
}
