/* Mixture of experts: choosing experts for each token, and computing only those that were chosen.
 *
 * Rows are sorted by expert, so that an expert's weights pass once through the tiles of the linears for all its rows.
 * Each pair of token and expert is a row of its own up to the sum at the end, which adds in the order of the choice: a
 * token's result is the same, to the bit, whatever the other tokens. */
#include "moe_rows.h"
#include "silu.h"
#include <float.h>

#define MAX_EXPERTS 1024
/* Below this a second thread costs more than it gives. */
#define PARALLEL_SCORES 16384

/* Scores are padded to whole vectors with what is never taken. */
#define TAKEN (-INFINITY)
#define PADDED (MAX_EXPERTS + VL)

/* The best of `count`, the first of equals; it will not be taken again. */
INLINE int64_t take_best(float *choice, int64_t count) {
    vf best = vf_load(choice);
    for (int64_t i = VL; i < count; i += VL) best = vf_max(best, vf_load(choice + i));
    float value = vf_hmax(best);
    int64_t at = 0;
    while (choice[at] != value) at++;
    choice[at] = TAKEN;
    return at;
}

/* The scores of the experts, in order of e. */
INLINE void score(const float *logits, float *scores, int64_t count, int64_t sigmoid) {
    vf largest = vf_load(logits), sum = vf_set(0.0f);
    for (int64_t e = VL; e < count; e += VL) largest = vf_max(largest, vf_load(logits + e));
    const vf shift = vf_set(vf_hmax(largest));
    for (int64_t e = 0; e < count; e += VL) {
        vf x = vf_load(logits + e);
        if (sigmoid) {
            vf decay = vf_exp(vf_select(x < 0.0f, x, -x));
            x = vf_select(x < 0.0f, decay, vf_set(1.0f)) / (decay + 1.0f);
        } else {
            sum += x = vf_exp(x - shift);
        }
        vf_store(scores + e, x);
    }
    if (sigmoid) return;
    const vf total = vf_set(vf_hsum(sum));
    for (int64_t e = 0; e < count; e += VL) vf_store(scores + e, vf_load(scores + e) / total);
}

/* Takes the experts of all but the best groups out of the choice. */
static void leave_groups(float *choice, int64_t count, int64_t groups, int64_t top_groups, int64_t group_best) {
    float group_scores[PADDED], group[PADDED];
    uint8_t kept[MAX_EXPERTS] = {0};
    int64_t size = count / groups;
    for (int64_t g = 0; g < groups; g++) {
        const float *members = choice + g * size;
        memcpy(group, members, size * sizeof(float));
        for (int64_t i = 0; i < VL; i++) group[size + i] = TAKEN;
        float sum = 0.0f;
        for (int64_t i = 0; i < group_best; i++) sum += members[take_best(group, size)];
        group_scores[g] = sum > -FLT_MAX ? sum : -FLT_MAX;
    }
    for (int64_t i = 0; i < VL; i++) group_scores[groups + i] = TAKEN;
    for (int64_t i = 0; i < top_groups; i++) kept[take_best(group_scores, groups)] = 1;
    for (int64_t e = 0; e < count; e++)
        if (!kept[e / size]) choice[e] = TAKEN;
}

/* One token; `row` holds its logits, and room for a vector more. */
static void route(float *row, const float *bias, float *weights, int32_t *ids, int64_t count, int64_t top_k,
                  int64_t sigmoid, int64_t renormalize, int64_t groups, int64_t top_groups, int64_t group_best,
                  float scaling) {
    float scores[PADDED], choice[PADDED], sum = 1e-20f;
    for (int64_t i = 0; i < VL; i++) row[count + i] = TAKEN;
    score(row, scores, count, sigmoid);
    /* A softmax keeps the order of its logits, of which fewer are equal. */
    const float *by = !bias && !sigmoid && group_best == 1 ? row : scores;
    for (int64_t e = 0; e < count; e++) {
        float value = bias ? by[e] + bias[e] : by[e];
        /* Above what is taken, NaN included. */
        choice[e] = value > -FLT_MAX ? value : -FLT_MAX;
    }
    for (int64_t i = 0; i < VL; i++) choice[count + i] = TAKEN;
    if (top_groups < groups) leave_groups(choice, count, groups, top_groups, group_best);
    for (int64_t k = 0; k < top_k; k++) {
        ids[k] = (int32_t)take_best(choice, count);
        sum += weights[k] = scores[ids[k]];
    }
    for (int64_t k = 0; k < top_k; k++) weights[k] = (renormalize ? weights[k] / sum : weights[k]) * scaling;
}

#define DEFINE_MOE_ROUTE(T)                                                                                            \
    void moe_route_##T(const T *logits, const float *bias, float *weights, int32_t *ids, int64_t tokens,               \
                       int64_t count, int64_t top_k, int64_t sigmoid, int64_t renormalize, int64_t groups,             \
                       int64_t top_groups, int64_t group_best, float scaling) {                                        \
        _Pragma("omp parallel for schedule(static) if (tokens > 1 && tokens * count > PARALLEL_SCORES)")               \
        for (int64_t t = 0; t < tokens; t++) {                                                                         \
            float row[PADDED];                                                                                         \
            for (int64_t e = 0; e < count; e++) row[e] = T##_to_float(logits[t * count + e]);                          \
            route(row, bias, weights + t * top_k, ids + t * top_k, count, top_k, sigmoid, renormalize, groups,         \
                  top_groups, group_best, scaling);                                                                    \
        }                                                                                                              \
    }

DEFINE_MOE_ROUTE(f32)
DEFINE_MOE_ROUTE(bf16)

#define T float
#define NAME(x) x##_f32
#define MATRICES float
#define WIDEN(p) vf_load(p)
#define ROUND(p, v) vf_store(p, v)
#define MULTIPLY(x, matrices, first, bias, out, from, to, rows, k, n) \
    multiply_f32(x, (matrices) + (first) * (k), bias, out, from, to, rows, k, n)
#include "moe_experts.h"
#undef MULTIPLY
#undef MATRICES
#undef T
#undef NAME
#undef WIDEN
#undef ROUND

#define T bf16
#define NAME(x) x##_bf16
#define MATRICES bf16
#define WIDEN(p) vf_load_bf16(p)
#define ROUND(p, v) vf_store_bf16(p, v)
#define MULTIPLY(x, matrices, first, bias, out, from, to, rows, k, n) \
    multiply_bf16(x, (matrices) + (first) * (k), bias, out, from, to, rows, k, n)
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include "moe_experts.h"
#else
int64_t moe_experts_bf16(const bf16 *x, const float *weights, const int32_t *ids, const bf16 *gate_up, const bf16 *down,
                      const bf16 *gate_up_bias, const bf16 *down_bias, bf16 *out, int64_t tokens, int64_t count,
                      int64_t top_k, int64_t d_size, int64_t i_size, int64_t clamped, float alpha, float limit,
                         char *workspace) {
    return 0;
}
#endif
