/* The lightning index: scores of all keys that a row sees, in float32, and the choice of the best. */
#include "vector.h"
#include <stdlib.h>

#define SEGMENT 256        /* keys of a task */
#define SCORES (1 << 22)   /* that exist at a time, unless one row has more */
#define HEADS 4            /* whose sums are in registers at a time */
#define MAX_DIM 256
#define PARALLEL_KEYS 64   /* below these a second thread costs more than it gives */

/* A score as a number of the same order. Sums that begin with 0 are never the negative zero. */
INLINE uint32_t ordered(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The positions of the `k` highest scores in ascending order, of equal ones the first; there are more than k. The lowest
 * of them is found digit by digit: how often each stands behind those that are found. */
static void choose(const float *scores, int64_t count, int64_t k, int32_t *out) {
    uint32_t found = 0;
    int64_t needed = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t counts[256] = {0};
        for (int64_t i = 0; i < count; i++) {
            uint32_t value = ordered(scores[i]);
            if (shift == 24 || value >> (shift + 8) == found) counts[value >> shift & 255]++;
        }
        int digit = 255;
        for (; counts[digit] < needed; digit--) needed -= counts[digit];
        found = found << 8 | (uint32_t)digit;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t value = ordered(scores[i]);
        if (value < found || (value == found && needed-- <= 0)) continue;
        *out++ = (int32_t)i;
    }
}

/* A tile is VL keys side by side, [dim][VL]. A score's sums go by elements, then by heads, whatever else is computed. */
static void score_tile(const float *q, const float *weights, const float *tile, float *scores, int64_t heads,
                       int64_t dim, int64_t lanes) {
    vf score = vf_set(0.0f);
    int64_t h = 0;
    for (; h + HEADS <= heads; h += HEADS) {
        vf sums[HEADS];
        for (int i = 0; i < HEADS; i++) sums[i] = vf_set(0.0f);
        for (int64_t d = 0; d < dim; d++) {
            vf key = vf_load(tile + d * VL);
            for (int i = 0; i < HEADS; i++) sums[i] += q[(h + i) * dim + d] * key;
        }
        for (int i = 0; i < HEADS; i++) score += weights[h + i] * vf_max(sums[i], vf_set(0.0f));
    }
    for (; h < heads; h++) {
        vf sum = vf_set(0.0f);
        for (int64_t d = 0; d < dim; d++) sum += q[h * dim + d] * vf_load(tile + d * VL);
        score += weights[h] * vf_max(sum, vf_set(0.0f));
    }
    for (int64_t i = 0; i < lanes; i++) scores[i] = score[i];
}

/* q is [rows][heads][dim]; the head weights of a row lie `weights_row` apart. Row r is of request requests[r] and sees
 * visible[r] keys, which lie in the blocks of that row of the table. out is [rows][top_k], -1 behind the last. */
#define DEFINE_INDEX(T)                                                                                            \
    static void score_segment_##T(const T *q, const T *weights, const T *cache, const int32_t *blocks,             \
                                  float *scores, int64_t first, int64_t last, int64_t heads, int64_t dim,          \
                                  int64_t block_size, float scale) {                                               \
        float queries[heads * dim], counts[heads], tile[MAX_DIM * VL];                                             \
        for (int64_t i = 0; i < heads * dim; i++) queries[i] = T##_to_float(q[i]);                                 \
        for (int64_t h = 0; h < heads; h++) counts[h] = T##_to_float(weights[h]) * scale;                          \
        memset(tile, 0, sizeof tile);                                                                              \
        for (int64_t at = first; at < last; at += VL) {                                                            \
            int64_t lanes = last - at < VL ? last - at : VL;                                                       \
            for (int64_t i = 0; i < lanes; i++) {                                                                  \
                int64_t slot = (int64_t)blocks[(at + i) / block_size] * block_size + (at + i) % block_size;        \
                const T *key = cache + slot * dim;                                                                 \
                for (int64_t d = 0; d < dim; d++) tile[d * VL + i] = T##_to_float(key[d]);                         \
            }                                                                                                      \
            score_tile(queries, counts, tile, scores + at, heads, dim, lanes);                                     \
        }                                                                                                          \
    }                                                                                                              \
                                                                                                                   \
    /* Returns 0, or -1 where there is no memory for scores. */                                                    \
    int64_t lightning_index_##T(const T *q, const T *weights, const T *cache, const int32_t *table,                \
                                const int32_t *requests, const int32_t *visible, int32_t *out, int64_t rows,       \
                                int64_t weights_row, int64_t table_row, int64_t heads, int64_t dim, int64_t top_k, \
                                int64_t block_size, float scale) {                                                 \
        int64_t longest = 0, all = 0;                                                                              \
        for (int64_t r = 0; r < rows; r++) {                                                                       \
            longest = visible[r] > longest ? visible[r] : longest;                                                 \
            if (visible[r] > top_k) all += visible[r];                                                             \
        }                                                                                                          \
        int64_t segments = (longest + SEGMENT - 1) / SEGMENT, together = SCORES / (longest + 1);                   \
        together = together < 1 ? 1 : together > rows ? rows : together;                                           \
        float *scores = all ? malloc((size_t)(together * longest) * 4) : NULL;                                     \
        if (all && !scores) return -1;                                                                             \
        for (int64_t begin = 0; begin < rows; begin += together) {                                                 \
            int64_t end = begin + together < rows ? begin + together : rows;                                       \
            _Pragma("omp parallel if (all > PARALLEL_KEYS)")                                                       \
            {                                                                                                      \
                _Pragma("omp for collapse(2) schedule(dynamic)")                                                   \
                for (int64_t r = begin; r < end; r++)                                                              \
                    for (int64_t segment = 0; segment < segments; segment++) {                                     \
                        int64_t first = segment * SEGMENT, last = first + SEGMENT;                                 \
                        if (visible[r] <= top_k || first >= visible[r]) continue;                                  \
                        score_segment_##T(q + r * heads * dim, weights + r * weights_row, cache,                   \
                                          table + requests[r] * table_row, scores + (r - begin) * longest, first,  \
                                          last < visible[r] ? last : visible[r], heads, dim, block_size, scale);   \
                    }                                                                                              \
                _Pragma("omp for schedule(dynamic)")                                                               \
                for (int64_t r = begin; r < end; r++) {                                                            \
                    int32_t *row = out + r * top_k;                                                                \
                    if (visible[r] > top_k) choose(scores + (r - begin) * longest, visible[r], top_k, row);        \
                    else                                                                                           \
                        for (int64_t i = 0; i < top_k; i++) row[i] = i < visible[r] ? (int32_t)i : -1;             \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        free(scores);                                                                                              \
        return 0;                                                                                                  \
    }

DEFINE_INDEX(f32)
DEFINE_INDEX(bf16)
