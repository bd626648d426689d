/* The inner loops of attention: packing a tile of keys and values, products of tiles, and the online softmax.
 *
 * A tile is TILE consecutive keys, cut at absolute positions. Operands are rows of 32 bit words: one float, or a pair of
 * bfloat16 where the CPU has their dot product. Every output element is summed in one order whatever the number of
 * rows beside it, so that a query's result is the same in any batch and in any chunk.
 */
#pragma once
#include "e4m3.h"
#include "transpose.h"

#ifdef ELEMENT_BFLOAT16
typedef bf16 element;
#else
typedef float element;
#endif

#if defined(ELEMENT_BFLOAT16) && defined(__AVX512BF16__) && defined(__AVX512F__)
#define PAIRS 2 /* elements in a word */
#else
#define PAIRS 1
#endif

/* What a cache keeps of keys and values: elements as they are, or bytes that are decoded as a tile is packed. */
#ifdef CACHE_E4M3
typedef uint8_t stored;
#else
typedef element stored;
#endif

#define TILE 64
#define MAX_HEAD_DIM 1024

#if VL == 16
#define ROW_BLOCK 6
#define COLUMN_BLOCK 4
#else
#define ROW_BLOCK 4
#define COLUMN_BLOCK 2
#endif

typedef uint32_t word;

INLINE float element_to_float(element x) {
#ifdef ELEMENT_BFLOAT16
    return bf16_to_float(x);
#else
    return x;
#endif
}

INLINE element float_to_element(float x) {
#ifdef ELEMENT_BFLOAT16
    return float_to_bf16(x);
#else
    return x;
#endif
}

INLINE vf load_elements(const element *p) {
#ifdef ELEMENT_BFLOAT16
    return vf_load_bf16(p);
#else
    return vf_load(p);
#endif
}

INLINE void store_elements(element *p, vf x) {
#ifdef ELEMENT_BFLOAT16
    vf_store_bf16(p, x);
#else
    vf_store(p, x);
#endif
}

INLINE vf load_stored(const stored *p) {
#ifdef CACHE_E4M3
    return vf_load_e4m3(p);
#else
    return load_elements(p);
#endif
}

INLINE float stored_to_float(stored x) {
#ifdef CACHE_E4M3
    return e4m3_to_vf((vu){x})[0];
#else
    return element_to_float(x);
#endif
}

/* VL words of a row, from the one that begins at element `at` on. Numbers in e4m3 are exact in bfloat16. */
INLINE vu load_words(const stored *row, int at) {
#if PAIRS == 1
    return (vu)load_stored(row + at);
#elif defined(CACHE_E4M3)
    vu codes = vu_widen((const uint16_t *)(row + at));
    return (vu)e4m3_to_vf(codes & 0xff) >> 16 | (vu)e4m3_to_vf(codes >> 8);
#else
    return *(const vu *)(row + at);
#endif
}

INLINE word load_word(const stored *row, int at) {
    word out;
#if PAIRS == 1
    float value = stored_to_float(row[at]);
    memcpy(&out, &value, 4);
#elif defined(CACHE_E4M3)
    out = float_to_bf16(stored_to_float(row[at])) | (word)float_to_bf16(stored_to_float(row[at + 1])) << 16;
#else
    memcpy(&out, row + at, 4);
#endif
    return out;
}

/* acc + a * b, word by word; `a` is one word for all lanes. */
INLINE vf multiply_add(vf acc, const word *a, const word *b) {
#if PAIRS == 2
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32((int)*a), (__m512bh)_mm512_loadu_si512(b));
#else
    float scalar;
    memcpy(&scalar, a, 4);
    return vf_fma(vf_set(scalar), vf_load((const float *)b), acc);
#endif
}

/* c[rows][columns] (+)= a[rows][depth] * b[depth][columns], with `rows` and `vectors` known when compiling. */
INLINE void product_block(int rows, int vectors, const word *a, int64_t a_stride, const word *b, int64_t b_stride,
                          float *c, int64_t c_stride, int depth, int accumulate) {
    vf acc[ROW_BLOCK][COLUMN_BLOCK];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++)
            acc[i][j] = accumulate ? vf_load(c + i * c_stride + j * VL) : vf_set(0);
    for (int k = 0; k < depth; k++)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                acc[i][j] = multiply_add(acc[i][j], a + i * a_stride + k, b + k * b_stride + j * VL);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) vf_store(c + i * c_stride + j * VL, acc[i][j]);
}

INLINE void product_columns(int rows, const word *a, int64_t a_stride, const word *b, int64_t b_stride, float *c,
                            int64_t c_stride, int depth, int columns, int accumulate) {
    int j = 0;
    for (; j + COLUMN_BLOCK * VL <= columns; j += COLUMN_BLOCK * VL)
        product_block(rows, COLUMN_BLOCK, a, a_stride, b + j, b_stride, c + j, c_stride, depth, accumulate);
    for (; j < columns; j += VL)
        product_block(rows, 1, a, a_stride, b + j, b_stride, c + j, c_stride, depth, accumulate);
}

/* `columns` is a multiple of VL. */
static void product(const word *a, int64_t a_stride, const word *b, int64_t b_stride, float *c, int64_t c_stride,
                    int rows, int depth, int columns, int accumulate) {
    int i = 0;
    for (; i + ROW_BLOCK <= rows; i += ROW_BLOCK)
        product_columns(ROW_BLOCK, a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, depth, columns,
                        accumulate);
    a += i * a_stride;
    c += i * c_stride;
#define REST(n) \
    case n: product_columns(n, a, a_stride, b, b_stride, c, c_stride, depth, columns, accumulate); break;
    switch (rows - i) {
        REST(1) REST(2) REST(3)
#if ROW_BLOCK > 4
        REST(4) REST(5)
#endif
    }
#undef REST
}

/* VL x VL words, of each row of `in` those from element `at` on, become columns: `row[i]` has word i of all rows. */
INLINE void transposed_words(const stored *const *in, int at, vu row[VL]) {
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) row[i] = load_words(in[i], at);
    transpose(row);
}

/* The same, stored: `out + i * out_stride` is a column. */
INLINE void transpose_words(const stored *const *in, int at, word *out, int64_t out_stride) {
    vu row[VL];
    transposed_words(in, at, row);
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) *(vu *)(out + i * out_stride) = row[i];
}

/* Asks for the cache line at `row + d` of each of `count` rows. Sprinkled over the packing: a burst would be dropped. */
INLINE void prefetch_lines(const stored *const *rows, int count, int d) {
    for (int i = 0; i < count; i++) ask_for(rows[i] + d);
}

#if defined(CACHE_E4M3) && defined(E4M3_BLOCKS)
/* Puts NaN where it was: what was packed of rows [0, count) lies `row_step` floats from row to row, `step` in a row. */
static __attribute__((noinline)) void mend_nan(const uint8_t *const *rows, int count, int head_dim, float *packed,
                                               int64_t row_step, int64_t step) {
    for (int t = 0; t < count; t++)
        for (int d = 0; d < head_dim; d++)
            if ((rows[t][d] & 0x7f) == 0x7f) packed[t * row_step + d * step] = NAN;
}
#endif

/* Keys, transposed: packed[word of the head][key]. Those in `ahead` are wanted soon. */
static void pack_keys(const stored *const *keys, const stored *const *ahead, int head_dim, word *packed) {
    int d = 0;
#if defined(CACHE_E4M3) && defined(E4M3_BLOCKS)
    __m128i largest = _mm_setzero_si128();
    for (; d + VL <= head_dim; d += VL)
        for (int t = 0; t < TILE; t += VL) {
            largest = transpose_e4m3(keys + t, d, (float *)packed + d * TILE + t, TILE, largest);
            if (d % 64 == 0) prefetch_lines(ahead + t, VL, d);
        }
    if (any_e4m3_nan(largest)) mend_nan(keys, TILE, head_dim, (float *)packed, 1, TILE);
#endif
    for (; d + VL * PAIRS <= head_dim; d += VL * PAIRS)
        for (int t = 0; t < TILE; t += VL) {
            transpose_words(keys + t, d, packed + d / PAIRS * TILE + t, TILE);
            if (d * sizeof(stored) % 64 < VL * PAIRS * sizeof(stored)) prefetch_lines(ahead + t, VL, d);
        }
    for (; d < head_dim; d += PAIRS)
        for (int t = 0; t < TILE; t++) packed[d / PAIRS * TILE + t] = load_word(keys[t], d);
}

/* Values: packed[key, or pair of keys][columns]; columns past head_dim are zeros. Those in `ahead` are wanted soon. */
static void pack_values(const stored *const *values, const stored *const *ahead, int head_dim, int columns,
                        word *packed) {
#if defined(CACHE_E4M3) && defined(E4M3_BLOCKS)
    __m128i largest = _mm_setzero_si128();
#endif
    for (int t = 0; t < TILE; t += PAIRS) {
        for (int line = 0; line < head_dim; line += 64 / (int)sizeof(stored)) prefetch_lines(ahead + t, PAIRS, line);
        word *out = packed + (int64_t)(t / PAIRS) * columns;
        int d = 0;
#if PAIRS == 2
        const stored *even = values[t], *odd = values[t + 1];
#ifdef CACHE_E4M3
        for (; d + VL <= head_dim; d += VL)
            *(vu *)(out + d) = (vu)vf_load_e4m3(even + d) >> 16 | (vu)vf_load_e4m3(odd + d);
        for (; d < head_dim; d++)
            out[d] = float_to_bf16(stored_to_float(even[d])) | (word)float_to_bf16(stored_to_float(odd[d])) << 16;
#else
        for (; d + VL <= head_dim; d += VL) *(vu *)(out + d) = vu_widen(even + d) | vu_widen(odd + d) << 16;
        for (; d < head_dim; d++) out[d] = even[d] | (word)odd[d] << 16;
#endif
#else
#if defined(CACHE_E4M3) && defined(E4M3_BLOCKS)
        for (; d + 2 * VL <= head_dim; d += 2 * VL) {
            __m128i codes = _mm_loadu_si128((const __m128i *)(values[t] + d));
            largest = largest_e4m3(largest, codes);
            decode_finite_e4m3(codes, (float *)out + d, (float *)out + d + VL);
        }
#endif
        for (; d + VL <= head_dim; d += VL) vf_store((float *)out + d, load_stored(values[t] + d));
        for (; d < head_dim; d++) ((float *)out)[d] = stored_to_float(values[t][d]);
#endif
        for (; d < columns; d++) out[d] = 0;
    }
#if defined(CACHE_E4M3) && defined(E4M3_BLOCKS)
    if (any_e4m3_nan(largest)) mend_nan(values, TILE, head_dim, (float *)packed, columns, 1);
#endif
}

/* Stores the weights of a tile as the left operand of the product with its values. */
INLINE void store_weights(word *out, int lane, vf weights) {
#if PAIRS == 2
    *(__m256i *)((bf16 *)out + lane) = (__m256i)_mm512_cvtneps_pbh((__m512)weights);
#else
    vf_store((float *)out + lane, weights);
#endif
}

/* Running state of one row: the largest score, the sum of weights lane by lane, and the weighted values. */
typedef struct {
    float *largest;  /* [rows] */
    float *sums;     /* [rows][VL] */
    float *values;   /* [rows][columns] */
} State;

INLINE vf soft_capped(vf score, float cap) {
    /* tanh(x) = 1 - 2 / (exp(2x) + 1), clamped where float32 has reached 1. */
    vf x = score * (1.0f / cap);
    x = vf_max(x, vf_set(-10.0f));
    x = -vf_max(-x, vf_set(-10.0f));
    return cap * (1.0f - 2.0f / (vf_exp(2.0f * x) + 1.0f));
}

/* Turns the scores of one row into weights and brings its state up to date. Keys outside [first, last) are unseen.
 * `key_scales`, `value_scales`: a factor on each key's score, and one on each value's weight; NULL for none. */
INLINE void softmax_row(float *scores, word *weights, State state, int row, int columns, int first, int last,
                        float scale, float soft_cap, const float *key_scales, const float *value_scales) {
    if (first >= last) {
        memset(weights, 0, TILE / PAIRS * 4);
        return;
    }
    vf iota = vf_iota(), score[TILE / VL], largest = vf_set(-INFINITY);
#pragma GCC unroll 16
    for (int j = 0; j < TILE / VL; j++) {
        vf x = vf_load(scores + j * VL) * scale;
        if (key_scales) x = x * vf_load(key_scales + j * VL);
        if (soft_cap > 0) x = soft_capped(x, soft_cap);
        if (first > 0 || last < TILE) {
            vf key = iota + (float)(j * VL);
            x = vf_select((key >= (float)first) & (key < (float)last), x, vf_set(-INFINITY));
        }
        score[j] = x;
        largest = vf_max(largest, x);
    }
    float before = state.largest[row], after = vf_hmax(largest);
    if (!(after > before)) after = before;
    vf sum = vf_load(state.sums + row * VL);
    if (after > before) {
        float factor = scalar_exp(before - after);
        float *values = state.values + (int64_t)row * columns;
        for (int d = 0; d < columns; d += VL) vf_store(values + d, vf_load(values + d) * factor);
        sum = sum * factor;
        state.largest[row] = after;
    }
#pragma GCC unroll 16
    for (int j = 0; j < TILE / VL; j++) {
        vf weight = vf_exp(score[j] - after);
        sum += weight;
        if (value_scales) weight = weight * vf_load(value_scales + j * VL);
        store_weights(weights, j * VL, weight);
    }
    vf_store(state.sums + row * VL, sum);
}
