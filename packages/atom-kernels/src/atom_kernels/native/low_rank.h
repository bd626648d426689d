/* The two products of low-rank adapters, y += B (A x) in float32, in shares of threads: `shrink_share` for all, then a
 * barrier, then `expand_share`. A thread reads long pieces of memory in their order, as fast as memory gives them. */
#pragma once
#include "ahead.h"
#include "lanes.h"

#define WIDTH 4 /* pairs of registers of outputs at a time */

/* a is [num_places][parts * rank][inputs], b is [num_places][rank][outputs]. Part p has the outputs up to ends[p]. As
 * `atom_kernels.adapters.matrices_in_c` fills it in. */
typedef struct {
    const void *a, *b;
    const int64_t *ends;
    int64_t num_places, inputs, rank, parts;
} matrices_t;

/* Tokens have places from 1; those in other places have no adapter. */
INLINE int has_adapter(const matrices_t *of, int64_t place) { return place >= 1 && place <= of->num_places; }

/* A thread's part [from, to) of as many pieces for each token that has an adapter, one token's behind the other's. */
INLINE void pieces_of_thread(const matrices_t *of, const int64_t *places, int64_t tokens, int64_t pieces, int64_t *from,
                             int64_t *to) {
    int64_t all = 0, threads = omp_get_num_threads(), thread = omp_get_thread_num();
    for (int64_t t = 0; t < tokens; t++) all += has_adapter(of, places[t]) ? pieces : 0;
    *from = all * thread / threads, *to = all * (thread + 1) / threads;
}

/* Lists in `runs`, which has room for `2 * tokens`, what a thread reads in `shrink_share` and then, for outputs [from, to),
 * in `expand_share`: matrices of `item` bytes a number. Returns their number. */
static inline int64_t runs_of_thread(const matrices_t *of, const int64_t *places, int64_t tokens, int64_t item,
                                     int64_t from, int64_t to, run_t *runs) {
    const int64_t rows = of->parts * of->rank, outputs = of->ends[of->parts - 1], pieces = (rows + TILE - 1) / TILE;
    const int64_t row_of_a = of->inputs * item, row_of_b = outputs * item;
    int64_t count = 0, first, last;
    pieces_of_thread(of, places, tokens, pieces, &first, &last);
    for (int64_t t = 0; t < tokens && last > 0; t++) {
        if (!has_adapter(of, places[t])) continue;
        const int64_t begin = first > 0 ? first * TILE : 0, end = last < pieces ? last * TILE : rows;
        const char *a = (const char *)of->a + ((places[t] - 1) * rows + begin) * row_of_a;
        if (begin < end) count = add_run(runs, count, (run_t){a, (end - begin) * row_of_a, 0, 1});
        first -= pieces, last -= pieces;
    }
    for (int64_t t = 0; t < tokens && from < to; t++) {
        if (!has_adapter(of, places[t])) continue;
        const char *b = (const char *)of->b + (places[t] - 1) * of->rank * row_of_b + from * item;
        count = add_run(runs, count, (run_t){b, (to - from) * item, row_of_b, of->rank});
    }
    return count;
}

/* Adds to each of TILE sums the products of a row with x, as far as one instruction does them; returns how far. */
INLINE int64_t dots_f32(const f32 *const *rows, const f32 *x, int64_t inputs, vf *sums) { return 0; }
INLINE int64_t dots_bf16(const bf16 *const *rows, const bf16 *x, int64_t inputs, vf *sums) {
    int64_t i = 0;
#if defined(__AVX512BF16__)
    for (; i + 2 * VL <= inputs; i += 2 * VL) {
        __m512bh of_x = (__m512bh)_mm512_loadu_si512(x + i);
        for (int r = 0; r < TILE; r++) {
            __builtin_prefetch(rows[r] + i + TILE * inputs);
            sums[r] = (vf)_mm512_dpbf16_ps((__m512)sums[r], of_x, (__m512bh)_mm512_loadu_si512(rows[r] + i));
        }
    }
#endif
    return i;
}

#define DEFINE_SHRINK(T)                                                                                           \
    /* inner = A x for up to TILE rows of A; those past the last one repeat it. */                                 \
    static void shrink_##T(const T *a, const T *x, int64_t count, int64_t inputs, float *inner) {                  \
        const T *rows[TILE];                                                                                       \
        vf sums[TILE];                                                                                             \
        for (int r = 0; r < TILE; r++) {                                                                           \
            rows[r] = a + (r < count ? r : count - 1) * inputs;                                                    \
            sums[r] = vf_set(0.0f);                                                                                \
        }                                                                                                          \
        int64_t i = dots_##T(rows, x, inputs, sums);                                                               \
        for (; i + VL <= inputs; i += VL) {                                                                        \
            vf of_x = vf_load_##T(x + i);                                                                          \
            for (int r = 0; r < TILE; r++) {                                                                       \
                __builtin_prefetch(rows[r] + i + TILE * inputs);                                                   \
                sums[r] += vf_load_##T(rows[r] + i) * of_x;                                                        \
            }                                                                                                      \
        }                                                                                                          \
        float totals[TILE];                                                                                        \
        vf_store(totals, sum_lanes(sums));                                                                         \
        for (int64_t r = 0; r < count; r++) {                                                                      \
            for (int64_t j = i; j < inputs; j++) totals[r] += T##_to_float(rows[r][j]) * T##_to_float(x[j]);       \
            inner[r] = totals[r];                                                                                  \
        }                                                                                                          \
    }                                                                                                              \
                                                                                                                   \
    /* A thread's share of inner [tokens][parts * rank], whose rows of tokens without an adapter are not written. */ \
    static void shrink_share_##T(const matrices_t *of, const int64_t *places, int64_t tokens, const T *x,          \
                                 int64_t x_stride, float *inner) {                                                 \
        const int64_t rows = of->parts * of->rank, pieces = (rows + TILE - 1) / TILE;                              \
        int64_t from, to;                                                                                          \
        pieces_of_thread(of, places, tokens, pieces, &from, &to);                                                  \
        for (int64_t t = 0; t < tokens && to > 0; t++) {                                                           \
            if (!has_adapter(of, places[t])) continue;                                                             \
            for (int64_t piece = from > 0 ? from : 0; piece < pieces && piece < to; piece++) {                     \
                int64_t first = piece * TILE, count = rows - first < TILE ? rows - first : TILE;                   \
                const T *a = (const T *)of->a + ((places[t] - 1) * rows + first) * of->inputs;                     \
                shrink_##T(a, x + t * x_stride, count, of->inputs, inner + t * rows + first);                      \
            }                                                                                                      \
            from -= pieces, to -= pieces;                                                                          \
        }                                                                                                          \
    }

/* Two registers of numbers in any order that takes little, and back into theirs: bfloat16 at even places and at odd ones,
 * which widens both by an instruction each. */
INLINE void load_two_f32(const f32 *p, vf *two) { two[0] = vf_load(p), two[1] = vf_load(p + VL); }
INLINE void put_in_order_f32(vf *two) {}
INLINE void load_two_bf16(const bf16 *p, vf *two) {
    const vu both = *(const vu *)p;
    two[0] = (vf)(both << 16), two[1] = (vf)(both & 0xffff0000u);
}
INLINE void put_in_order_bf16(vf *two) {
#if VL == 16
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(VL / 2));
    const __m512 even = (__m512)two[0], odd = (__m512)two[1];
    two[0] = (vf)_mm512_permutex2var_ps(even, low, odd), two[1] = (vf)_mm512_permutex2var_ps(even, high, odd);
#else
    float ordered[2 * VL];
    for (int i = 0; i < VL; i++) ordered[2 * i] = two[0][i], ordered[2 * i + 1] = two[1][i];
    two[0] = vf_load(ordered), two[1] = vf_load(ordered + VL);
#endif
}

/* y += B inner for as many outputs as `width` pairs of registers hold, whose sums take in all ranks. */
#define DEFINE_EXPAND(T, Y)                                                                                        \
    INLINE void expand_##T##_##Y(const int width, const float *inner, const T *b, int64_t rank, int64_t stride, Y *y) { \
        vf sums[2 * WIDTH];                                                                                        \
        for (int k = 0; k < 2 * width; k++) sums[k] = vf_set(0.0f);                                                \
        for (int64_t r = 0; r < rank; r++, b += stride) {                                                          \
            for (int k = 0; k < 2 * width; k += 2) {                                                               \
                vf two[2];                                                                                         \
                load_two_##T(b + k * VL, two);                                                                     \
                for (int i = 0; i < 2; i++) sums[k + i] = vf_fma(vf_set(inner[r]), two[i], sums[k + i]);           \
            }                                                                                                      \
        }                                                                                                          \
        for (int k = 0; k < 2 * width; k += 2) put_in_order_##T(sums + k);                                         \
        for (int k = 0; k < 2 * width; k++) vf_store_##Y(y + k * VL, vf_load_##Y(y + k * VL) + sums[k]);           \
    }                                                                                                              \
                                                                                                                   \
    static void expand_part_##T##_##Y(const float *inner, const T *b, int64_t rank, int64_t stride, int64_t size, Y *y) { \
        int64_t i = 0;                                                                                             \
        for (; i + 2 * WIDTH * VL <= size; i += 2 * WIDTH * VL)                                                    \
            expand_##T##_##Y(WIDTH, inner, b + i, rank, stride, y + i);                                            \
        for (; i + 2 * VL <= size; i += 2 * VL) expand_##T##_##Y(1, inner, b + i, rank, stride, y + i);            \
        /* The last ones go the way of all: their bits must not depend on where the share of a thread ends. */     \
        for (; i < size; i += VL) {                                                                                \
            const int64_t count = size - i < VL ? size - i : VL;                                                   \
            T row[VL] = {0};                                                                                       \
            Y last[VL] = {0};                                                                                      \
            vf sum = vf_set(0.0f);                                                                                 \
            for (int64_t r = 0; r < rank; r++) {                                                                   \
                memcpy(row, b + r * stride + i, count * sizeof(T));                                                \
                sum = vf_fma(vf_set(inner[r]), vf_load_##T(row), sum);                                             \
            }                                                                                                      \
            memcpy(last, y + i, count * sizeof(Y));                                                                \
            vf_store_##Y(last, vf_load_##Y(last) + sum);                                                           \
            memcpy(y + i, last, count * sizeof(Y));                                                                \
        }                                                                                                          \
    }                                                                                                              \
                                                                                                                   \
    /* Outputs [from, to) of y [tokens][outputs]. */                                                               \
    static void expand_share_##T##_##Y(const matrices_t *of, const int64_t *places, int64_t tokens,                \
                                       const float *inner, Y *y, int64_t y_stride, int64_t from, int64_t to) {     \
        const int64_t rank = of->rank, outputs = of->ends[of->parts - 1];                                          \
        for (int64_t t = 0; t < tokens; t++) {                                                                     \
            if (!has_adapter(of, places[t])) continue;                                                             \
            const T *b = (const T *)of->b + (places[t] - 1) * rank * outputs;                                      \
            for (int64_t p = 0, at = from; p < of->parts; p++) {                                                   \
                const int64_t end = of->ends[p] < to ? of->ends[p] : to;                                           \
                if (at >= end) continue;                                                                           \
                expand_part_##T##_##Y(inner + (t * of->parts + p) * rank, b + at, rank, outputs, end - at,         \
                                      y + t * y_stride + at);                                                      \
                at = end;                                                                                          \
            }                                                                                                      \
        }                                                                                                          \
    }
