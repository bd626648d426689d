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

#if defined(IN_TILES) || defined(ELEMENT_BFLOAT16) && defined(__AVX512BF16__) && defined(__AVX512F__)
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

#ifdef IN_TILES
#define TILE 256 /* a whole segment */
#else
#define TILE 64
#endif
#define MAX_HEAD_DIM 1024

#if defined(CACHE_E4M3) && defined(E4M3_BLOCKS) && PAIRS == 1
#define PACKS_FLOAT_BLOCKS
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

#ifdef IN_TILES
#include "attention_in_tiles.h"
#else
#include "attention_vectors.h"
#endif

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

#ifdef PACKS_FLOAT_BLOCKS
/* Puts NaN where it was: what was packed of rows [0, count) lies `row_step` floats from row to row, `step` in a row. */
static __attribute__((noinline)) void mend_nan(const uint8_t *const *rows, int count, int head_dim, float *packed,
                                               int64_t row_step, int64_t step) {
    for (int t = 0; t < count; t++)
        for (int d = 0; d < head_dim; d++)
            if ((rows[t][d] & 0x7f) == 0x7f) packed[t * row_step + d * step] = NAN;
}
#endif

/* The first `count` keys, a multiple of VL, transposed as `score_rows` reads them. Those in `ahead` are wanted soon. */
static void pack_keys(const stored *const *keys, const stored *const *ahead, int count, int head_dim, word *packed) {
    int d = 0, depth = head_dim / PAIRS;
#ifdef PACKS_FLOAT_BLOCKS
    __m128i largest = _mm_setzero_si128();
    for (; d + VL <= head_dim; d += VL)
        for (int t = 0; t < count; t += VL) {
            largest = transpose_e4m3(keys + t, d, (float *)key_word(packed, depth, d, t), KEY_STRIDE, largest);
            if (d % 64 == 0) prefetch_lines(ahead + t, VL, d);
        }
    if (any_e4m3_nan(largest)) mend_nan(keys, count, head_dim, (float *)packed, 1, KEY_STRIDE);
#endif
    for (; d + VL * PAIRS <= head_dim; d += VL * PAIRS)
        for (int t = 0; t < count; t += VL) {
            transpose_words(keys + t, d, key_word(packed, depth, d / PAIRS, t), KEY_STRIDE);
            if (d * sizeof(stored) % 64 < VL * PAIRS * sizeof(stored)) prefetch_lines(ahead + t, VL, d);
        }
    for (; d < head_dim; d += PAIRS)
        for (int t = 0; t < count; t++) *key_word(packed, depth, d / PAIRS, t) = load_word(keys[t], d);
}

#if PAIRS == 2 && VL == 16
/* Elements of a register. */
#define WIDTH (VL * PAIRS)
#define FIRST_HALF(pair) pair, WIDTH + (pair)
#define EIGHT(f, at) f(at), f(at + 1), f(at + 2), f(at + 3), f(at + 4), f(at + 5), f(at + 6), f(at + 7)
static const uint16_t first_pairs[WIDTH] = {EIGHT(FIRST_HALF, 0), EIGHT(FIRST_HALF, 8)};
static const uint16_t last_pairs[WIDTH] = {EIGHT(FIRST_HALF, 16), EIGHT(FIRST_HALF, 24)};

/* Pairs of two rows' elements: those of the first VL columns, and of the VL behind them. */
INLINE void pair_up(const bf16 *even, const bf16 *odd, vu *low, vu *high) {
    __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
    *low = (vu)_mm512_permutex2var_epi16(a, _mm512_loadu_si512(first_pairs), b);
    *high = (vu)_mm512_permutex2var_epi16(a, _mm512_loadu_si512(last_pairs), b);
}
#endif

/* The first `count` values: packed[key, or pair of keys][columns]; columns past head_dim are zeros. Those in `ahead` are
 * wanted soon. */
static void pack_values(const stored *const *values, const stored *const *ahead, int count, int head_dim, int columns,
                        word *packed) {
#ifdef PACKS_FLOAT_BLOCKS
    __m128i largest = _mm_setzero_si128();
#endif
    for (int t = 0; t < count; t += PAIRS) {
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
#if VL == 16
        for (; d + WIDTH <= head_dim; d += WIDTH) pair_up(even + d, odd + d, (vu *)(out + d), (vu *)(out + d + VL));
#endif
        for (; d + VL <= head_dim; d += VL) *(vu *)(out + d) = vu_widen(even + d) | vu_widen(odd + d) << 16;
        for (; d < head_dim; d++) out[d] = even[d] | (word)odd[d] << 16;
#endif
#else
#ifdef PACKS_FLOAT_BLOCKS
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
#ifdef PACKS_FLOAT_BLOCKS
    if (any_e4m3_nan(largest)) mend_nan(values, count, head_dim, (float *)packed, columns, 1);
#endif
}

/* Stores the weights of a tile as the left operand of the product with its values. */
INLINE void store_weights(word *out, int lane, vf weights) {
#if PAIRS == 2
    vf_store_bf16((bf16 *)out + lane, weights);
#else
    vf_store((float *)out + lane, weights);
#endif
}

/* Values of a result, times a factor. */
INLINE void store_result(element *out, const float *values, int n, float factor) {
    int d = 0;
    for (; d + VL <= n; d += VL) store_elements(out + d, vf_load(values + d) * factor);
    for (; d < n; d++) out[d] = float_to_element(values[d] * factor);
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

/* Scales the scores of one row; keys outside [first, last) are unseen. The largest of each lane. `key_scales`: a factor on
 * each key's score; NULL for none. */
INLINE vf scale_scores(float *scores, int first, int last, float scale, float soft_cap, const float *key_scales) {
    vf iota = vf_iota(), largest = vf_set(-INFINITY);
    for (int j = first / VL * VL; j < last; j += VL) {
        vf x = vf_load(scores + j) * scale;
        if (key_scales) x = x * vf_load(key_scales + j);
        if (soft_cap > 0) x = soft_capped(x, soft_cap);
        if (first > j || last < j + VL) {
            vf key = iota + (float)j;
            x = vf_select((key >= (float)first) & (key < (float)last), x, vf_set(-INFINITY));
        }
        vf_store(scores + j, x);
        largest = vf_max(largest, x);
    }
    return largest;
}

/* Turns the scaled scores of one row, of which `largest` is the largest so far, into weights, and adds these up.
 * `value_scales`: a factor on each value's weight; NULL for none. */
INLINE vf weigh_scores(const float *scores, word *weights, int first, int last, float largest, vf sum,
                       const float *value_scales) {
    for (int j = first / VL * VL; j < last; j += VL) {
        vf weight = vf_exp(vf_load(scores + j) - largest);
        sum += weight;
        if (value_scales) weight = weight * vf_load(value_scales + j);
        store_weights(weights, j, weight);
    }
    return sum;
}

/* Turns the scores of one row into weights and brings its state up to date. Keys outside [first, last) are unseen. */
INLINE void softmax_row(float *scores, word *weights, State state, int row, int columns, int first, int last,
                        float scale, float soft_cap, const float *key_scales, const float *value_scales) {
    memset(weights, 0, TILE / PAIRS * 4);
    if (first >= last) return;
    float before = state.largest[row], after = vf_hmax(scale_scores(scores, first, last, scale, soft_cap, key_scales));
    if (!(after > before)) after = before;
    vf sum = vf_load(state.sums + row * VL);
    if (after > before) {
        float factor = scalar_exp(before - after);
        float *values = state.values + (int64_t)row * columns;
        for (int d = 0; d < columns; d += VL) vf_store(values + d, vf_load(values + d) * factor);
        sum = sum * factor;
        state.largest[row] = after;
    }
    vf_store(state.sums + row * VL, weigh_scores(scores, weights, first, last, after, sum, value_scales));
}
