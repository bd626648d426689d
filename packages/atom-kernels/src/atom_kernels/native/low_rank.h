/* The two products of low-rank adapters, y += B (A x) in float32, in shares of threads: `shrink_share` for all, then a
 * barrier, then `expand_share`. A thread reads long pieces of memory in their order, as fast as memory gives them. */
#pragma once
#include "lanes.h"

#define WIDTH 4 /* registers of outputs at a time */

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

/* y += B inner for as many outputs as `width` registers hold, whose sums take in all ranks. */
#define DEFINE_EXPAND(T, Y)                                                                                        \
    INLINE void expand_##T##_##Y(const int width, const float *inner, const T *b, int64_t rank, int64_t stride, Y *y) { \
        vf sums[WIDTH];                                                                                            \
        for (int k = 0; k < width; k++) sums[k] = vf_set(0.0f);                                                    \
        for (int64_t r = 0; r < rank; r++) {                                                                       \
            const T *row = b + r * stride;                                                                         \
            __builtin_prefetch(row + WIDTH * VL);                                                                  \
            __builtin_prefetch(row + WIDTH * VL + WIDTH * VL / 2);                                                 \
            for (int k = 0; k < width; k++) sums[k] = vf_fma(vf_set(inner[r]), vf_load_##T(row + k * VL), sums[k]);\
        }                                                                                                          \
        for (int k = 0; k < width; k++) vf_store_##Y(y + k * VL, vf_load_##Y(y + k * VL) + sums[k]);               \
    }                                                                                                              \
                                                                                                                   \
    static void expand_part_##T##_##Y(const float *inner, const T *b, int64_t rank, int64_t stride, int64_t size, Y *y) { \
        int64_t i = 0;                                                                                             \
        for (; i + WIDTH * VL <= size; i += WIDTH * VL) expand_##T##_##Y(WIDTH, inner, b + i, rank, stride, y + i); \
        for (; i + VL <= size; i += VL) expand_##T##_##Y(1, inner, b + i, rank, stride, y + i);                    \
        if (i == size) return;                                                                                     \
        /* The last ones go the way of all: their bits must not depend on where the share of a thread ends. */     \
        T row[VL] = {0};                                                                                           \
        Y last[VL] = {0};                                                                                          \
        vf sum = vf_set(0.0f);                                                                                     \
        for (int64_t r = 0; r < rank; r++) {                                                                       \
            memcpy(row, b + r * stride + i, (size - i) * sizeof(T));                                               \
            sum = vf_fma(vf_set(inner[r]), vf_load_##T(row), sum);                                                 \
        }                                                                                                          \
        memcpy(last, y + i, (size - i) * sizeof(Y));                                                               \
        vf_store_##Y(last, vf_load_##Y(last) + sum);                                                               \
        memcpy(y + i, last, (size - i) * sizeof(Y));                                                               \
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
