/* Attention of encoders: every query of a text against all its keys, or those of a window before and behind it; no cache.
 *
 * A task is some queries of one head, cut from the text's own start as its tiles of keys are, and a row is summed in one
 * order whatever the rows beside it: a text's result depends on nothing but itself.
 */
#pragma once
#include <stdlib.h>

#include "attention_tile.h"

#define TASK_QUERIES 96
#define ENCODER_HEAD_DIM 256

typedef struct {
    int32_t start, end, first, last; /* rows of the batch: the text's, and those of its queries that are a task */
} Queries;

typedef struct {
    const element *q, *k, *v;
    element *out;
    int64_t q_stride, k_stride, v_stride; /* from token to token, in elements; heads lie behind each other */
    int64_t num_heads, head_dim, before, behind; /* keys that a query sees on each side, at most */
    float scale;
} Encoder;

typedef struct {
    word queries[TASK_QUERIES * ENCODER_HEAD_DIM], keys[TILE * ENCODER_HEAD_DIM], values[TILE * ENCODER_HEAD_DIM];
    word weights[TASK_QUERIES * TILE];
    float scores[TASK_QUERIES * TILE], largest[TASK_QUERIES], sums[TASK_QUERIES * VL];
    float found[TASK_QUERIES * ENCODER_HEAD_DIM];
} Workspace;

INLINE int64_t low(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t high(int64_t a, int64_t b) { return a > b ? a : b; }

static void gather_queries(const element *q, int64_t stride, int rows, int n, word *out) {
    for (int i = 0; i < rows; i++, q += stride, out += n / PAIRS) {
#if PAIRS == 2 || defined(ELEMENT_FLOAT32)
        memcpy(out, q, n * sizeof(element));
#else
        for (int d = 0; d < n; d++) ((float *)out)[d] = element_to_float(q[d]);
#endif
    }
}

/* Rows of one head from token `at` on; those behind the text's last are zeros. */
INLINE void tile_rows(const element *head, int64_t stride, int64_t at, int count, const element **rows) {
    static const element zeros[ENCODER_HEAD_DIM];
    for (int i = 0; i < TILE; i++) rows[i] = i < count ? head + (at + i) * stride : zeros;
}

static void store_rows(const Encoder *e, const Queries *task, int64_t head, int columns, const Workspace *w) {
    int n = (int)e->head_dim;
    for (int i = 0; i < task->last - task->first; i++) {
        const float *found = w->found + (int64_t)i * columns;
        element *out = e->out + ((task->first + i) * e->num_heads + head) * n;
        float factor = 1.0f / vf_hsum(vf_load(w->sums + i * VL));
        store_result(out, found, n, factor);
    }
}

static void attend(const Encoder *e, const Queries *task, int64_t head, Workspace *w) {
    const element *rows[TILE];
    int n = (int)e->head_dim, columns = (n + VL - 1) / VL * VL, num_rows = task->last - task->first;
    int64_t length = task->end - task->start, first = task->first - task->start, last = task->last - task->start;
    State state = {w->largest, w->sums, w->found};
    gather_queries(e->q + task->first * e->q_stride + head * n, e->q_stride, num_rows, n, w->queries);
    for (int i = 0; i < num_rows; i++) w->largest[i] = -INFINITY;
    memset(w->sums, 0, (size_t)num_rows * VL * 4);
    memset(w->found, 0, (size_t)num_rows * columns * 4);
    int64_t end = low(last + e->behind, length);
    for (int64_t at = high(first - e->before, 0); at < end; at += TILE) {
        int count = (int)low(TILE, length - at), width = (count + VL - 1) / VL * VL;
        tile_rows(e->k + head * n, e->k_stride, task->start + at, count, rows);
        pack_keys(rows, rows, width, n, w->keys);
        score_rows(w->queries, w->keys, w->scores, num_rows, n / PAIRS, width);
        for (int i = 0; i < num_rows; i++) {
            int64_t from = high(0, first + i - e->before - at), to = low(count, first + i + e->behind + 1 - at);
            softmax_row(w->scores + i * TILE, w->weights + i * (TILE / PAIRS), state, i, columns, (int)from, (int)to,
                        e->scale, 0, NULL, NULL);
        }
        tile_rows(e->v + head * n, e->v_stride, task->start + at, count, rows);
        pack_values(rows, rows, width, n, columns, w->values);
        add_values(w->weights, w->values, w->found, num_rows, width, columns);
    }
    store_rows(e, task, head, columns, w);
}

/* Fills `out` for the queries of all tasks. */
void encoder_attention(const void *q, const void *k, const void *v, void *out, int64_t q_stride, int64_t k_stride,
                       int64_t v_stride, int64_t num_heads, int64_t head_dim, int64_t before, int64_t behind,
                       float scale, const Queries *tasks, int64_t num_tasks) {
    Encoder e = {q, k, v, out, q_stride, k_stride, v_stride, num_heads, head_dim, before, behind, scale};
#pragma omp parallel if (num_tasks * num_heads > 8)
    {
        static _Thread_local Workspace *w; /* kept from call to call */
        if (!w) w = aligned_alloc(4096, (sizeof(Workspace) + 4095) / 4096 * 4096);
#pragma omp for collapse(2) schedule(dynamic, 4)
        for (int64_t i = 0; i < num_tasks; i++)
            for (int64_t head = 0; head < num_heads; head++) attend(&e, tasks + i, head, w);
        end_products();
    }
}
