/* One attention layer over a paged cache in one call: head norms, rotation, cache write, attention.
 *
 * The keys of a request are cut into segments of SEGMENT positions, each one tile or a few. A row's result is its segments,
 * each computed from nothing, merged in order: whether one thread walks all of them (prompts) or several share them
 * (decodes), the arithmetic is the same.
 */
#pragma once
#include <stdlib.h>

#include "attention_tile.h"
#include "attention_write.h"

#define SEGMENT 256
#define TASK_ROWS 96  /* queries times heads of a group that one task takes through the keys together */
#define SPLIT_ROWS 32 /* up to so many, its segments are tasks of their own */

typedef struct {
    int request, first_head, last_head, first_query, last_query, first_segment, last_segment;
    int64_t partial; /* where the state of a split segment goes, -1: the whole result goes to `out` */
} Task;

typedef struct {
    void *memory;
    size_t size;
} Buffer;

static void *reserve(Buffer *buffer, size_t size) {
    if (buffer->size < size) {
        free(buffer->memory);
        size = (size + size / 2 + 4095) / 4096 * 4096;
        buffer->memory = aligned_alloc(4096, size);
        buffer->size = buffer->memory ? size : 0;
    }
    return buffer->memory;
}

/* Kept from call to call; each thread has its own. */
static _Thread_local Buffer tile_buffer, query_buffer, task_buffer, partial_buffer;

INLINE int64_t low(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t high(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int columns_of(const Layer *layer) { return (int)((layer->value_dim + VL - 1) / VL * VL); }
INLINE int64_t group_of(const Layer *layer) { return layer->num_heads / layer->num_kv_heads; }
/* Floats of one row's state, when it is handed from one thread to another. */
INLINE int64_t state_floats(const Layer *layer) { return 2 + columns_of(layer); }

INLINE int64_t key_end_of(const Batch *batch, int64_t request) {
    return batch->key_ends ? batch->key_ends[request] : batch->seq_lens[request];
}

/* The last position that the token of a row at `position` sees. */
INLINE int64_t last_seen(const Batch *batch, int64_t row, int64_t position) {
    return batch->sees_until ? high(position, batch->sees_until[row]) : position;
}

/* Behind the last key that one of the rows sees, the first of which is at `position`. */
static int64_t visible_end(const Batch *batch, int64_t request, int64_t first_row, int64_t num_rows, int64_t position) {
    int64_t last = position + num_rows - 1;
    for (int64_t i = 0; batch->sees_until && i < num_rows; i++) last = high(last, batch->sees_until[first_row + i]);
    return low(last + 1, key_end_of(batch, request));
}

INLINE int64_t first_visible(const Layer *layer, int64_t position) {
    return layer->window > 0 ? high(0, position - layer->window + 1) : 0;
}

/* ---- one task ------------------------------------------------------------------------------------------------- */

typedef struct {
    word *queries, *keys, *values, *weights; /* tiles as operands */
    float *scores;
    State segment, total;
} Workspace;

static float *carve(char **at, int64_t floats) {
    char *start = *at;
    *at += (floats * 4 + 63) / 64 * 64;
    return (float *)start;
}

static Workspace workspace(const Layer *layer) {
    int64_t rows = high(TASK_ROWS, group_of(layer)), columns = columns_of(layer), n = layer->head_dim;
    int64_t floats = rows * (n + TILE * 2 + 2 * (1 + VL + columns)) + TILE * (n + high(n, columns)) + 64 * 16;
    char *at = reserve(&tile_buffer, (size_t)floats * 4);
    Workspace w;
    w.queries = (word *)carve(&at, rows * n);
    w.keys = (word *)carve(&at, TILE * n);
    w.values = (word *)carve(&at, TILE * high(n, columns));
    w.weights = (word *)carve(&at, rows * TILE);
    w.scores = carve(&at, rows * TILE);
    w.segment = (State){carve(&at, rows), carve(&at, rows * VL), carve(&at, rows * columns)};
    w.total = (State){carve(&at, rows), carve(&at, rows), carve(&at, rows * columns)};
    return w;
}

/* Adds one segment's row to the total of the segments before it. Not inlined: its sums of two products could be
 * contracted in two ways, and all callers must get the same. */
static __attribute__((noinline)) void merge_row(float *largest, float *sum, float *values, float part_largest, float part_sum,
                      const float *part_values, int columns) {
    if (part_largest == -INFINITY) return;
    float joint = *largest > part_largest ? *largest : part_largest;
    float keep = scalar_exp(*largest - joint), add = scalar_exp(part_largest - joint);
    *sum = *sum * keep + part_sum * add;
    *largest = joint;
    for (int d = 0; d < columns; d += VL) {
        vf x = vf_load(values + d) * keep;
        vf_store(values + d, x + vf_load(part_values + d) * add);
    }
}

INLINE void finish_row(const Layer *layer, const Tensors *t, int64_t token, int64_t head, float largest, float sum,
                       const float *values) {
    float factor = 1.0f / sum;
    if (t->sinks) {
        float joint = t->sinks[head] > largest ? t->sinks[head] : largest;
        float keep = scalar_exp(largest - joint);
        factor = keep / (sum * keep + scalar_exp(t->sinks[head] - joint));
    }
    if (t->v_scales) factor *= t->v_scales[head / group_of(layer)];
    if (t->log_sums) t->log_sums[token * layer->num_heads + head] = largest + logf(sum);
    element *out = t->out + (token * layer->num_heads + head) * layer->value_dim;
    store_result(out, values, (int)layer->value_dim, factor);
}

/* One task, with what follows from it. Its rows go by key/value head, then query, then head of the group. */
typedef struct {
    const Layer *layer;
    const Batch *batch;
    const int32_t *blocks;
    int first_head, num_heads, first_query, num_queries, group;
    int rows_per_head, num_rows, columns;
    int64_t first_row, first_position; /* of the task's first query: row of the batch, position in the request */
    int64_t key_end;                   /* the request has no keys from here on */
    int64_t first_key, last_key;       /* that any of its queries sees; the last is excluded */
    int64_t begin, end;                /* those of its own segments */
} Span;

static Span span_of(const Layer *layer, const Batch *batch, const Task *task) {
    Span s = {layer, batch, batch->block_table + task->request * batch->block_table_stride};
    int64_t first_row = batch->query_starts[task->request], last_row = batch->query_ends[task->request];
    s.first_head = task->first_head, s.num_heads = task->last_head - task->first_head;
    s.first_query = task->first_query, s.num_queries = task->last_query - task->first_query;
    s.group = (int)group_of(layer), s.columns = columns_of(layer);
    s.rows_per_head = s.num_queries * s.group, s.num_rows = s.rows_per_head * s.num_heads;
    s.first_row = first_row + s.first_query;
    s.first_position = batch->seq_lens[task->request] - (last_row - first_row) + s.first_query;
    s.first_key = first_visible(layer, s.first_position);
    s.key_end = key_end_of(batch, task->request);
    s.last_key = visible_end(batch, task->request, s.first_row, s.num_queries, s.first_position);
    s.begin = high(s.first_key, task->first_segment * SEGMENT);
    s.end = low(s.last_key, task->last_segment * SEGMENT);
    return s;
}

static void gather_queries(const Span *s, const element *q, int64_t q_stride, word *queries) {
    int64_t n = s->layer->head_dim, count = s->group * n;
    for (int64_t head = s->first_head; head < s->first_head + s->num_heads; head++)
        for (int64_t i = 0; i < s->num_queries; i++, queries += count / PAIRS) {
            const element *in = q + (s->first_row + i) * q_stride + head * count;
#if PAIRS == 2 || defined(ELEMENT_FLOAT32)
            memcpy(queries, in, count * sizeof(element));
#else
            for (int64_t d = 0; d < count; d++) ((float *)queries)[d] = element_to_float(in[d]);
#endif
        }
}

/* Where the keys of a tile lie in the cache, and their values: the same offsets. */
typedef struct {
    int64_t offset[TILE], slot[TILE];
    int first, last; /* those that any query sees */
} Places;

static void find_places(const Span *s, int64_t start, Places *places) {
    const Layer *layer = s->layer;
    int64_t key = high(start, s->begin), last = low(start + TILE, s->end);
    places->first = (int)(key - start), places->last = (int)(last - start);
    while (key < last) {
        int64_t in_block = key % layer->block_size, end = low(last, key - in_block + layer->block_size);
        int64_t block = s->blocks[key / layer->block_size], slot = block * layer->block_size + in_block;
        int64_t offset = block * layer->block_stride + in_block * layer->token_stride;
        for (; key < end; key++, offset += layer->token_stride) {
            places->offset[key - start] = offset;
            places->slot[key - start] = slot++;
        }
    }
}

/* Pointers to one head of a tile's keys or values. Unseen ones point to zeros: what lies in the cache past a request's
 * end may be anything, and blocks that a window has left may be gone. */
INLINE void tile_rows(const stored *head, const Places *places, const stored **rows) {
    static const stored zeros[MAX_HEAD_DIM];
    for (int i = places->first; i < places->last; i++) rows[i] = head + places->offset[i];
    for (int i = 0; i < places->first; i++) rows[i] = zeros;
    for (int i = places->last; i < TILE; i++) rows[i] = zeros;
}

/* The scales of one head of a tile's keys or values, in `out`; NULL where they have none. */
INLINE const float *tile_scales(const Layer *layer, const float *scales, int64_t head, const Places *places, float *out) {
    if (!scales) return NULL;
    for (int i = 0; i < TILE; i++) out[i] = 1;
    for (int i = places->first; i < places->last; i++) out[i] = scales[places->slot[i] * layer->num_kv_heads + head];
    return out;
}

#ifdef IN_TILES
#include "attention_segment_in_tiles.h"
#else
#include "attention_segment.h"
#endif

/* Adds one segment's rows to the totals of the segments before it. */
static void merge_rows(const Span *s, Workspace *w) {
    for (int64_t i = 0; i < s->num_rows; i++)
        merge_row(w->total.largest + i, w->total.sums + i, w->total.values + i * s->columns, w->segment.largest[i],
                  vf_hsum(vf_load(w->segment.sums + i * VL)), w->segment.values + i * s->columns, s->columns);
}

INLINE void finish(const Span *s, const Tensors *t, int64_t row, float largest, float sum, const float *values) {
    int64_t head = s->first_head + row / s->rows_per_head, rest = row % s->rows_per_head;
    finish_row(s->layer, t, s->first_row + rest / s->group, head * s->group + rest % s->group, largest, sum, values);
}

/* `next`: the task that this thread takes after this one, or NULL. */
static void run_task(const Layer *layer, const Batch *batch, const Tensors *t, const Task *task, const Task *next,
                     const element *q, int64_t q_stride, float *partials) {
    Workspace w = workspace(layer);
    Span s = span_of(layer, batch, task), after;
    if (next) after = span_of(layer, batch, next);
    gather_queries(&s, q, q_stride, w.queries);
    for (int64_t i = 0; i < s.num_rows; i++) w.total.largest[i] = -INFINITY, w.total.sums[i] = 0;
    memset(w.total.values, 0, (size_t)s.num_rows * s.columns * 4);
    for (int64_t segment = task->first_segment; segment < task->last_segment; segment++) {
        attend_segment(&s, next ? &after : NULL, t, &w, segment);
        merge_rows(&s, &w);
    }
    for (int64_t i = 0; i < s.num_rows; i++) {
        const float *values = w.total.values + i * s.columns;
        if (task->partial < 0) {
            finish(&s, t, i, w.total.largest[i], w.total.sums[i], values);
        } else {
            float *state = partials + task->partial + i * state_floats(layer);
            state[0] = w.total.largest[i], state[1] = w.total.sums[i];
            memcpy(state + 2, values, s.columns * 4);
        }
    }
}

/* Merges the segments of the rows of one split task: `task` is the first of them, the others follow in order. */
static void merge_segments(const Layer *layer, const Batch *batch, const Tensors *t, const Task *task, int num_parts,
                           float *partials) {
    Span s = span_of(layer, batch, task);
    int64_t width = state_floats(layer);
    for (int64_t i = 0; i < s.num_rows; i++) {
        float *total = partials + task->partial + i * width;
        for (int part = 1; part < num_parts; part++) {
            const float *state = total + part * s.num_rows * width;
            merge_row(total, total + 1, total + 2, state[0], state[1], state + 2, s.columns);
        }
        finish(&s, t, i, total[0], total[1], total + 2);
    }
}

/* ---- the batch ------------------------------------------------------------------------------------------------ */

typedef struct {
    Task *tasks;
    int64_t num_tasks, partial_floats, num_keys;
} Schedule;

/* Later requests and later queries first: prompts follow decodes, and their last queries see the most keys. Tasks of few
 * rows take `heads` key/value heads together, since these lie side by side in memory. */
static Schedule make_schedule(const Layer *layer, const Batch *batch, int64_t heads, Task *tasks) {
    Schedule s = {tasks, 0, 0, 0};
    int64_t group = group_of(layer), per_task = high(1, TASK_ROWS / group);
    for (int64_t r = batch->num_reqs - 1; r >= 0; r--) {
        int64_t num_queries = batch->query_ends[r] - batch->query_starts[r];
        int64_t first_position = batch->seq_lens[r] - num_queries;
        for (int64_t last = num_queries; last > 0;) {
            int64_t first = (last - 1) / per_task * per_task, rows = (last - first) * group;
            int64_t begin = first_visible(layer, first_position + first) / SEGMENT;
            int64_t first_row = batch->query_starts[r] + first;
            int64_t end = (visible_end(batch, r, first_row, last - first, first_position + first) - 1) / SEGMENT + 1;
            int split = rows <= SPLIT_ROWS && end - begin > 1;
            int64_t step = split ? 1 : end - begin, together = high(1, low(heads, TASK_ROWS / rows));
            s.num_keys += (end - begin) * SEGMENT * layer->num_kv_heads;
            for (int64_t head = 0; head < layer->num_kv_heads; head += together) {
                int64_t last_head = low(layer->num_kv_heads, head + together);
                for (int64_t segment = begin; segment < end; segment += step) {
                    if (tasks)
                        tasks[s.num_tasks] = (Task){(int)r, (int)head, (int)last_head, (int)first, (int)last, (int)segment,
                                                    (int)(segment + step), split ? s.partial_floats : -1};
                    s.num_tasks++;
                    if (split) s.partial_floats += rows * (last_head - head) * state_floats(layer);
                }
            }
            last = first;
        }
    }
    return s;
}

INLINE int same_rows(const Task *a, const Task *b) {
    return a->request == b->request && a->first_head == b->first_head && a->first_query == b->first_query;
}

static void attend_batch(const Layer *layer, const Batch *batch, const Prologue *prologue, const Tensors *tensors) {
    /* How tasks are cut changes no result, only who computes it: whole rows of heads where that leaves enough tasks. */
    int64_t heads = layer->num_kv_heads;
    Schedule schedule = make_schedule(layer, batch, heads, NULL);
    if (schedule.num_tasks < 4 * omp_get_max_threads()) schedule = make_schedule(layer, batch, heads = 1, NULL);
    schedule = make_schedule(layer, batch, heads, reserve(&task_buffer, schedule.num_tasks * sizeof(Task) + 1));
    float *partials = reserve(&partial_buffer, schedule.partial_floats * 4 + 4);
    const element *q = tensors->q;
    int64_t q_stride = tensors->q_stride, row = layer->num_heads * layer->head_dim;
    int64_t out_row = layer->num_heads * layer->value_dim;
    element *q_out = NULL;
    if (prologue->positions) {
        q = q_out = reserve(&query_buffer, batch->num_tokens * row * sizeof(element) + 64);
        q_stride = row;
    }
    int64_t used = batch->num_reqs ? batch->query_ends[batch->num_reqs - 1] : 0;
    if (used < tensors->num_rows)
        memset(tensors->out + used * out_row, 0, (tensors->num_rows - used) * out_row * sizeof(element));
    const Task *tasks = schedule.tasks;
    int64_t taken = 0;
#pragma omp parallel if (schedule.num_keys > 512 || batch->num_tokens > 16)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < batch->num_tokens; i++) prepare_token(layer, batch, prologue, tensors, q_out, i);
        /* Each thread takes its next task before it starts on one, to have the first keys of it on their way. */
        for (int64_t i = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED), next; i < schedule.num_tasks; i = next) {
            next = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
            run_task(layer, batch, tensors, tasks + i, next < schedule.num_tasks ? tasks + next : NULL, q, q_stride,
                     partials);
        }
#pragma omp barrier
        if (schedule.partial_floats) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < schedule.num_tasks; i++) {
                if (tasks[i].partial < 0 || (i > 0 && same_rows(tasks + i, tasks + i - 1))) continue;
                int64_t end = i + 1;
                while (end < schedule.num_tasks && same_rows(tasks + i, tasks + end)) end++;
                merge_segments(layer, batch, tensors, tasks + i, (int)(end - i), partials);
            }
        }
        end_products();
    }
}

/* The entry point: pointers and numbers of one layer and step, in the order of the structures above. */
void attention(const Layer *layer, const Batch *batch, const void *q, const void *k, const void *v, void *k_cache,
               void *v_cache, void *out, const void *k_scales, const void *v_scales, void *k_token_scales,
               void *v_token_scales, const void *sinks, void *log_sums, int64_t q_stride, int64_t k_stride, int64_t v_stride,
               int64_t num_rows, const void *positions, const void *cos_sin, const void *q_norm, const void *k_norm,
               int64_t rotary_dim, int64_t interleaved, float eps) {
    Prologue prologue = {positions, cos_sin, q_norm, k_norm, rotary_dim, interleaved, eps};
    Tensors tensors = {q, k, v, k_cache, v_cache, out, k_scales, v_scales, k_token_scales, v_token_scales, sinks, log_sums, q_stride, k_stride, v_stride, num_rows};
    attend_batch(layer, batch, &prologue, &tensors);
}
