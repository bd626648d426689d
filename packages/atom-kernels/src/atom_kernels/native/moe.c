/* Mixture of experts: choosing experts for each token, and computing only those that were chosen.
 *
 * Rows are sorted by expert, so that an expert's weights pass once through the tiles of the linears for all of its rows.
 * Each pair of token and expert is a row of its own up to the sum at the end, which adds them in the order of the choice:
 * in float32 a token's result is the same, to the bit, whatever the other tokens. */
#include "linear.h"
#include "silu.h"

#define MAX_EXPERTS 1024
#define MAX_TOP_K 64
#define ALIGNMENT 64
/* Below these a second thread costs more than it gives. */
#define PARALLEL_SCORES 16384
#define PARALLEL_PRODUCTS 65536

typedef float f32;
INLINE float f32_to_float(f32 x) { return x; }

/* The best of `count` not yet taken, the first of equals; NaN counts as the least. */
static int64_t take_best(const float *choice, uint8_t *taken, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || choice[i] > choice[best] || (choice[best] != choice[best] && choice[i] == choice[i])))
            best = i;
    taken[best] = 1;
    return best;
}

/* The scores of the experts, and what they are chosen by. */
static void score(const float *logits, const float *bias, float *scores, float *choice, int64_t count, int64_t sigmoid) {
    float largest = -INFINITY, sum = 0.0f;
    for (int64_t e = 0; e < count; e++) largest = logits[e] > largest ? logits[e] : largest;
    for (int64_t e = 0; e < count; e++) {
        if (sigmoid) {
            float decay = expf(-fabsf(logits[e]));
            scores[e] = (logits[e] < 0.0f ? decay : 1.0f) / (1.0f + decay);
        } else {
            sum += scores[e] = expf(logits[e] - largest);
        }
    }
    for (int64_t e = 0; e < count; e++) {
        if (!sigmoid) scores[e] /= sum;
        choice[e] = bias ? scores[e] + bias[e] : scores[e];
    }
}

/* Marks the experts of all but the best groups as taken. */
static void leave_groups(const float *choice, uint8_t *taken, int64_t count, int64_t groups, int64_t top_groups,
                         int64_t group_best) {
    float group_scores[MAX_EXPERTS];
    uint8_t kept[MAX_EXPERTS] = {0};
    int64_t size = count / groups;
    for (int64_t g = 0; g < groups; g++) {
        uint8_t seen[MAX_EXPERTS] = {0};
        group_scores[g] = 0.0f;
        for (int64_t i = 0; i < group_best; i++)
            group_scores[g] += choice[g * size + take_best(choice + g * size, seen, size)];
    }
    for (int64_t i = 0; i < top_groups; i++) take_best(group_scores, kept, groups);
    for (int64_t e = 0; e < count; e++) taken[e] = !kept[e / size];
}

#define DEFINE_MOE_ROUTE(T)                                                                                            \
    void moe_route_##T(const T *logits, const float *bias, float *weights, int32_t *ids, int64_t tokens, int64_t count, \
                       int64_t top_k, int64_t sigmoid, int64_t renormalize, int64_t groups, int64_t top_groups,        \
                       int64_t group_best, float scaling) {                                                            \
        _Pragma("omp parallel for schedule(static) if (tokens > 1 && tokens * count > PARALLEL_SCORES)")               \
        for (int64_t t = 0; t < tokens; t++) {                                                                         \
            float row[MAX_EXPERTS], scores[MAX_EXPERTS], choice[MAX_EXPERTS], sum = 1e-20f;                            \
            uint8_t taken[MAX_EXPERTS] = {0};                                                                          \
            for (int64_t e = 0; e < count; e++) row[e] = T##_to_float(logits[t * count + e]);                          \
            score(row, bias, scores, choice, count, sigmoid);                                                          \
            /* A softmax is as monotonous as its logits, of which fewer are equal. */                                  \
            const float *by = !bias && !sigmoid && group_best == 1 ? row : choice;                                     \
            if (top_groups < groups) leave_groups(by, taken, count, groups, top_groups, group_best);                   \
            for (int64_t k = 0; k < top_k; k++) {                                                                      \
                int64_t expert = take_best(by, taken, count);                                                          \
                ids[t * top_k + k] = (int32_t)expert;                                                                  \
                sum += weights[t * top_k + k] = scores[expert];                                                        \
            }                                                                                                          \
            for (int64_t k = 0; k < top_k; k++)                                                                        \
                weights[t * top_k + k] = (renormalize ? weights[t * top_k + k] / sum : weights[t * top_k + k]) * scaling; \
        }                                                                                                              \
    }

DEFINE_MOE_ROUTE(f32)
DEFINE_MOE_ROUTE(bf16)

/* Bytes of all arrays between the products, see `moe_experts`. */
typedef struct {
    int64_t x, hidden, active, partial, starts, cursors, order, total;
} Workspace;

static Workspace plan_workspace(int64_t tokens, int64_t count, int64_t top_k, int64_t d_size, int64_t i_size,
                                int64_t item) {
    Workspace at;
    int64_t next = 0, pairs = tokens * top_k;
#define TAKE(field, bytes) at.field = next, next += ((bytes) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
    TAKE(x, pairs * d_size * item);
    TAKE(hidden, pairs * 2 * i_size * item);
    TAKE(active, pairs * i_size * item);
    TAKE(partial, pairs * d_size * item);
    TAKE(starts, (count + 1) * 8);
    TAKE(cursors, count * 8);
    TAKE(order, pairs * 8);
#undef TAKE
    at.total = next + ALIGNMENT;
    return at;
}

int64_t moe_workspace_bytes(int64_t tokens, int64_t count, int64_t top_k, int64_t d_size, int64_t i_size, int64_t item) {
    return plan_workspace(tokens, count, top_k, d_size, i_size, item).total;
}

/* Rows of weight that pass in one go, as in `linear`. */
INLINE int64_t panel_rows(int64_t k_size, int64_t item) {
    int64_t rows = PANEL_BYTES / (item * k_size) / TILE * TILE;
    return rows > PANEL_ROWS ? PANEL_ROWS : rows < TILE ? TILE : rows;
}

/* starts[e]: first sorted row of an expert; order[pair]: where the row of that pair lies, -1 if its expert is not here. */
static void sort_rows(const int32_t *ids, int64_t pairs, int64_t count, int64_t *starts, int64_t *cursors,
                      int64_t *order) {
    memset(cursors, 0, count * sizeof(int64_t));
    for (int64_t p = 0; p < pairs; p++)
        if (ids[p] >= 0 && ids[p] < count) cursors[ids[p]]++;
    starts[0] = 0;
    for (int64_t e = 0; e < count; e++) {
        starts[e + 1] = starts[e] + cursors[e];
        cursors[e] = starts[e];
    }
    for (int64_t p = 0; p < pairs; p++) order[p] = ids[p] >= 0 && ids[p] < count ? cursors[ids[p]]++ : -1;
}

#define T float
#define NAME(x) x##_f32
#define WIDEN(p) vf_load(p)
#define ROUND(p, v) vf_store(p, v)
#include "moe_experts.h"
#undef T
#undef NAME
#undef WIDEN
#undef ROUND

#define T bf16
#define NAME(x) x##_bf16
#define WIDEN(p) vf_load_bf16(p)
#define ROUND(p, v) vf_store_bf16(p, v)
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include "moe_experts.h"
#else
void moe_experts_bf16(const bf16 *x, const float *weights, const int32_t *ids, const bf16 *gate_up, const bf16 *down,
                      const bf16 *gate_up_bias, const bf16 *down_bias, bf16 *out, int64_t tokens, int64_t count,
                      int64_t top_k, int64_t d_size, int64_t i_size, int64_t clamped, float alpha, float limit,
                      char *workspace) {}
#endif
