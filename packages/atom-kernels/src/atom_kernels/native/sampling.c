/* Draws one token from each row of logits, without sorting: thresholds are found bit by bit from histograms.
 *
 * Weights are unnormalized probabilities in float32, the best token's being 1; all sums are in float64. A row is one
 * thread's work in a fixed order, so its token depends on no other row.
 */
#include <stdlib.h>

#include "vector.h"

#define BLOCK 512 /* tokens whose weights are summed together before the draw is placed */
#define BINS 2048
#define LIKELY_FLOORS 16 /* so many times the weight below which no token can be in the nucleus few are outside of it */
#define LANES 8

typedef struct {
    float *weights, *candidate_weights;
    uint32_t *candidate_keys;
    double *block_sums, *masses;
    int64_t vocab_size;
} Scratch;

static _Thread_local char *scratch_memory;
static _Thread_local size_t scratch_size;

static Scratch scratch_for(int64_t vocab_size) {
    size_t row = ((size_t)vocab_size * 4 + 63) / 64 * 64, blocks = ((size_t)vocab_size / BLOCK + 1) * 8;
    size_t size = 3 * row + (blocks + 63) / 64 * 64 + BINS * 8;
    if (scratch_size < size) {
        free(scratch_memory);
        scratch_memory = aligned_alloc(64, size);
        scratch_size = size;
    }
    char *at = scratch_memory;
    Scratch s = {(float *)at, (float *)(at + row), (uint32_t *)(at + 2 * row), (double *)(at + 3 * row + BINS * 8),
                 (double *)(at + 3 * row), vocab_size};
    return s;
}

/* Unsigned integers in the order of the floats. NaN has no place in that order: callers leave it out. */
INLINE uint32_t float_to_key(float x) {
    uint32_t bits;
    x += 0.0f; /* -0 equals 0 */
    memcpy(&bits, &x, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

INLINE float key_to_float(uint32_t key) {
    uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static float largest_of(const float *x, int64_t n) {
    vf best = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) best = vf_max(vf_load(x + i), best); /* a NaN on the left loses */
    float m = vf_hmax(best);
    for (; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

static int64_t first_equal(const float *x, int64_t n, float value) {
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        int64_t end = begin + BLOCK < n ? begin + BLOCK : n;
        int found = 0;
        for (int64_t i = begin; i < end; i++) found |= x[i] == value;
        if (found)
            for (int64_t i = begin; i < end; i++)
                if (x[i] == value) return i;
    }
    return 0;
}

static void fill_weights(const float *x, float *weights, int64_t n, float best, float temperature) {
    int64_t i = 0;
    vf peak = vf_set(best), one = vf_set(1), zero = vf_set(0);
    for (; i + VL <= n; i += VL) {
        vf value = vf_load(x + i);
        vf weight = vf_select(value <= peak, vf_exp((value - best) / temperature), zero);
        vf_store(weights + i, vf_select(value == peak, one, weight));
    }
    for (; i < n; i++) weights[i] = x[i] == best ? 1 : x[i] <= best ? scalar_exp((x[i] - best) / temperature) : 0;
}

static double sum_of(const float *x, int64_t n) {
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += (double)x[i + j];
    for (; i < n; i++) sum += (double)x[i];
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

/* About the weight of the tokens that logit and weight do not rule out: sums are in float32. */
static double mass_of(const Scratch *s, const float *x, float least_logit, float least_weight) {
    vf sum = vf_set(0), zero = vf_set(0);
    int64_t i = 0;
    for (; i + VL <= s->vocab_size; i += VL) {
        vf weight = vf_load(s->weights + i);
        sum += vf_select((vf_load(x + i) >= least_logit) & (weight >= least_weight), weight, zero);
    }
    float mass = vf_hsum(sum);
    for (; i < s->vocab_size; i++) mass += (x[i] >= least_logit) & (s->weights[i] >= least_weight) ? s->weights[i] : 0;
    return (double)mass;
}

/* The tokens that the logit and the weight do not rule out, as keys with weights. */
static int64_t collect(const Scratch *s, const float *x, float least_logit, float least_weight) {
    int64_t count = 0, i = 0;
#if VL == 16
    for (; i + VL <= s->vocab_size; i += VL) {
        __m512 value = _mm512_add_ps(_mm512_loadu_ps(x + i), _mm512_setzero_ps()), weight = _mm512_loadu_ps(s->weights + i);
        __mmask16 wanted = _mm512_cmp_ps_mask(value, _mm512_set1_ps(least_logit), _CMP_GE_OQ) &
                           _mm512_cmp_ps_mask(weight, _mm512_set1_ps(least_weight), _CMP_GE_OQ);
        if (!wanted) continue;
        __m512i bits = _mm512_castps_si512(value), sign = _mm512_srai_epi32(bits, 31);
        __m512i keys = _mm512_xor_si512(bits, _mm512_or_si512(sign, _mm512_set1_epi32((int)0x80000000u)));
        /* Whole vectors are stored; what lies past `count` is overwritten or never read. */
        _mm512_storeu_si512(s->candidate_keys + count, _mm512_maskz_compress_epi32(wanted, keys));
        _mm512_storeu_ps(s->candidate_weights + count, _mm512_maskz_compress_ps(wanted, weight));
        count += __builtin_popcount(wanted);
    }
#elif VL == 8
    /* Most vectors have one such token or none. */
    for (; i + VL <= s->vocab_size; i += VL) {
        __m256 logit_is = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(least_logit), _CMP_GE_OQ);
        __m256 weight_is = _mm256_cmp_ps(_mm256_loadu_ps(s->weights + i), _mm256_set1_ps(least_weight), _CMP_GE_OQ);
        unsigned wanted = (unsigned)_mm256_movemask_ps(_mm256_and_ps(logit_is, weight_is));
        if (__builtin_popcount(wanted) > 2) { /* where there are many, no branch is quicker than a wrong guess */
            for (int64_t token = i; token < i + VL; token++, wanted >>= 1) {
                s->candidate_keys[count] = float_to_key(x[token]);
                s->candidate_weights[count] = s->weights[token];
                count += wanted & 1;
            }
            continue;
        }
        for (; wanted; wanted &= wanted - 1) {
            int64_t token = i + __builtin_ctz(wanted);
            s->candidate_keys[count] = float_to_key(x[token]);
            s->candidate_weights[count++] = s->weights[token];
        }
    }
#endif
    for (; i < s->vocab_size; i++) {
        s->candidate_keys[count] = float_to_key(x[i]);
        s->candidate_weights[count] = s->weights[i];
        count += (x[i] >= least_logit) & (s->weights[i] >= least_weight);
    }
    return count;
}

/* The key at which a walk from the largest candidate downwards has gathered `wanted`: mass if `by_mass`, else tokens.
 * Eleven, eleven and ten bits at a time, with only the candidates of the bin that matters taken along. */
static uint32_t key_at(const Scratch *s, int64_t count, double wanted, int by_mass) {
    uint32_t *keys = s->candidate_keys, prefix = 0;
    float *weights = s->candidate_weights;
    double above = 0;
    static const int shifts[3] = {21, 10, 0}, bits[3] = {11, 11, 10};
    for (int level = 0; level < 3; level++) {
        int shift = shifts[level], last_filled = 0, chosen = -1;
        uint32_t mask = (1u << bits[level]) - 1;
        memset(s->masses, 0, BINS * sizeof(double));
        for (int64_t i = 0; i < count; i++) s->masses[keys[i] >> shift & mask] += by_mass ? (double)weights[i] : 1.0;
        for (int bin = (int)mask; bin >= 0; bin--) {
            if (s->masses[bin] <= 0) continue;
            last_filled = bin;
            if (above + s->masses[bin] >= wanted) {
                chosen = bin;
                break;
            }
            above += s->masses[bin];
        }
        if (chosen < 0) { /* rounding kept the sum just short: all of them, down to the last */
            chosen = last_filled;
            above -= s->masses[chosen];
        }
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++) {
            uint32_t key = keys[i];
            float weight = weights[i];
            keys[kept] = key, weights[kept] = weight;
            kept += (key >> shift & mask) == (uint32_t)chosen;
        }
        count = kept;
        prefix |= (uint32_t)chosen << shift;
    }
    return prefix;
}

/* The smallest logit that top-k and then top-p keep. */
static float least_logit_of(const Scratch *s, const float *x, int64_t top_k, float top_p) {
    float least = -INFINITY;
    int64_t n = s->vocab_size;
    if (top_k > 0 && top_k < n) {
        int64_t count = collect(s, x, -INFINITY, 0);
        if (top_k < count) least = key_to_float(key_at(s, count, (double)top_k, 0));
    }
    if (top_p < 1) {
        double total = 0;
        if (least == -INFINITY) {
            total = sum_of(s->weights, n);
        } else {
            int64_t count = collect(s, x, least, 0);
            total = sum_of(s->candidate_weights, count);
        }
        /* Tokens below this weight have together less than 1 - top_p, so none of them is in the nucleus. */
        float floor = (float)((1.0 - (double)top_p) * total / (double)n * (1 - 1e-5));
        /* Most nuclei end far above it, and these few tokens have their mass already. */
        double wanted = (double)top_p * total;
        if (mass_of(s, x, least, LIKELY_FLOORS * floor) > wanted * 1.01) floor *= LIKELY_FLOORS;
        int64_t count = collect(s, x, least, floor);
        if (count > 0) least = key_to_float(key_at(s, count, wanted, 1));
    }
    return least;
}

static void drop_below(const Scratch *s, const float *x, float least_logit, float least_weight) {
    float *weights = s->weights;
    for (int64_t i = 0; i < s->vocab_size; i++)
        weights[i] = (x[i] >= least_logit) & (weights[i] >= least_weight) ? weights[i] : 0;
}

/* The first token at which the cumulative weight exceeds `uniform` of the total. */
static int64_t draw(const Scratch *s, double uniform) {
    int64_t n = s->vocab_size, num_blocks = (n + BLOCK - 1) / BLOCK, block, last = 0;
    double total = 0, cumulative = 0;
    for (int64_t b = 0; b < num_blocks; b++) {
        int64_t size = b * BLOCK + BLOCK < n ? BLOCK : n - b * BLOCK;
        total += s->block_sums[b] = sum_of(s->weights + b * BLOCK, size);
        if (s->block_sums[b] > 0) last = b; /* where the draw ends if rounding lifts the target to the total */
    }
    double target = uniform * total;
    for (block = 0; block < last && cumulative + s->block_sums[block] <= target; block++)
        cumulative += s->block_sums[block];
    int64_t end = block * BLOCK + BLOCK < n ? block * BLOCK + BLOCK : n, token = block * BLOCK;
    for (int64_t i = block * BLOCK; i < end; i++)
        if (s->weights[i] > 0) {
            token = i;
            cumulative += (double)s->weights[i];
            if (cumulative > target) break;
        }
    return token;
}

static int64_t sample_row(const float *x, int64_t n, double uniform, float temperature, int64_t top_k, float top_p,
                          float min_p) {
    float best = largest_of(x, n);
    if (!(temperature > 0)) return first_equal(x, n, best);
    Scratch s = scratch_for(n);
    fill_weights(x, s.weights, n, best, temperature);
    float least_logit = least_logit_of(&s, x, top_k, top_p);
    if (least_logit > -INFINITY || min_p > 0) drop_below(&s, x, least_logit, min_p);
    return draw(&s, uniform);
}

/* The parameters of row i stand at slots[i], or at i without slots. Without top_k, top_p and min_p nothing is left out. */
void sample_rows(const float *logits, int64_t row_stride, int64_t num_rows, int64_t vocab_size, const int64_t *slots,
                 const double *uniform, const float *temperature, const int32_t *top_k, const float *top_p,
                 const float *min_p, int64_t *tokens) {
#pragma omp parallel for schedule(dynamic, 1) if (num_rows > 1)
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t slot = slots ? slots[i] : i;
        tokens[i] = sample_row(logits + i * row_stride, vocab_size, uniform[i], temperature[slot], top_k ? top_k[slot] : 0,
                               top_p ? top_p[slot] : 1, min_p ? min_p[slot] : 0);
    }
}

static void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)counter[0] * 0xD2511F53u, product1 = (uint64_t)counter[2] * 0xCD9E8D57u;
        counter[0] = (uint32_t)(product1 >> 32) ^ counter[1] ^ key0;
        counter[2] = (uint32_t)(product0 >> 32) ^ counter[3] ^ key1;
        counter[1] = (uint32_t)product1;
        counter[3] = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* As in sample_rows seeds and samples stand at slots[i], or at i. */
void philox_uniforms(const int64_t *seed, const int64_t *sample_index, const int64_t *slots, const int64_t *position,
                     double *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = slots ? slots[i] : i;
        uint64_t s = (uint64_t)seed[slot], j = (uint64_t)sample_index[slot], p = (uint64_t)position[i];
        uint32_t counter[4] = {(uint32_t)p, (uint32_t)(p >> 32), (uint32_t)j, (uint32_t)(j >> 32)};
        philox(counter, (uint32_t)s, (uint32_t)(s >> 32));
        out[i] = (double)((uint64_t)(counter[0] >> 5) << 26 | counter[1] >> 6) * 0x1p-53;
    }
}

/* Of each request the tokens up to the first that is not its draft, -1 behind it; all join the histories.
 * Rows of one slot stand together. */
void accept_draws(int64_t *ids, const float *logits, int64_t row_stride, int64_t token_stride, const int64_t *slots,
                  const int64_t *positions, int32_t *history, int64_t history_stride, int32_t *num_rejected,
                  int64_t n, int64_t padding_slot, int64_t not_finite) {
    int is_output = 1;
    for (int64_t i = 0; i < n; i++) {
        if (slots[i] == padding_slot) continue;
        int64_t drawn = isfinite(logits[i * row_stride + ids[i] * token_stride]) ? ids[i] : not_finite;
        int32_t *place = history + slots[i] * history_stride + positions[i];
        if (i == 0 || slots[i] != slots[i - 1]) {
            is_output = 1;
            num_rejected[slots[i]] = 0;
        }
        ids[i] = is_output ? drawn : -1;
        num_rejected[slots[i]] += !is_output;
        is_output &= drawn == *place;
        *place = drawn < 0 ? 0 : (int32_t)drawn;
    }
}
