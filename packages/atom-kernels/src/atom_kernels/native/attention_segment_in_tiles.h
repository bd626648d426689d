/* A segment of keys in AMX tiles: scores of all rows, weights of all rows, values of all rows. */
#pragma once
#include "attention_few_rows.h"

_Static_assert(TILE == SEGMENT, "a segment is one tile");
#define LEAD 32 /* keys ahead of those that are read, which are asked for */

/* The keys, or the values, of some heads of a segment, in the order in which they are read. */
typedef struct {
    const Span *span;
    const Places *places;
    const stored *cache;
    int channels;
} Stream;

INLINE int first_group(const Places *places) { return places->first / TILE_ROWS; }
INLINE int end_group(const Places *places) { return (places->last + TILE_ROWS - 1) / TILE_ROWS; }

INLINE const stored *head_of(const Stream *stream, int64_t head) {
    return stream->cache + (stream->span->first_head + head) * stream->span->layer->head_stride;
}

/* Rows that are read LEAD keys after each of `rows`, those of one head: of this head, of the next one, or of `then`. */
static void rows_ahead(const Stream *now, const Stream *then, int64_t head, const stored *const *rows, const stored **ahead) {
    static const stored nothing[MAX_HEAD_DIM];
    const int end = end_group(now->places) * TILE_ROWS, here = end > LEAD ? end - LEAD : 0;
    const int is_last = head + 1 == now->span->num_heads;
    const Stream *next = is_last ? then : now;
    const stored *at = head_of(next, is_last ? 0 : head + 1);
    memcpy(ahead, rows + LEAD, here * sizeof *ahead);
    for (int i = here; i < end; i++) {
        const int key = i + LEAD - end;
        ahead[i] = key >= next->places->first && key < next->places->last ? at + next->places->offset[key] : nothing;
    }
    for (int i = end; i < TILE; i++) ahead[i] = nothing;
}

/* 16 keys of a head, of which `rows` are the places: in the cache, or in `copied` where they lie apart, are not all seen or
 * are to be decoded. */
INLINE Rows group_of_keys(const Stream *keys, const stored *const *rows, int key, bf16 *copied) {
    const Places *places = keys->places;
    const Layer *layer = keys->span->layer;
    const int n = keys->channels;
    if (sizeof(stored) == sizeof(bf16) && layer->block_size % TILE_ROWS == 0 && key >= places->first &&
        key + TILE_ROWS <= places->last)
        return (Rows){(const bf16 *)rows[key], layer->token_stride};
    for (int i = 0; i < TILE_ROWS; i++)
        for (int d = 0; d < n; d += VL * PAIRS) *(vu *)(copied + i * n + d) = load_words(rows[key + i], d);
    return (Rows){copied, n};
}

static void score_head(const Stream *keys, const Stream *then, int64_t head, Workspace *w) {
    const Span *s = keys->span;
    const int rows = s->rows_per_head, n = keys->channels, depth = n / PAIRS, end = end_group(keys->places);
    const word *queries = w->queries + head * rows * depth;
    float *scores = w->scores + head * rows * TILE;
    const stored *each[TILE], *ahead[TILE];
    tile_rows(head_of(keys, head), keys->places, each);
    rows_ahead(keys, then, head, each, ahead);
    if (rows > FEW_ROWS) {
        const int width = (end + 1) / 2 * PAIR;
        pack_keys(each, ahead, width, n, w->keys);
        score_rows(queries, w->keys, scores, rows, depth, width);
        return;
    }
    float found[TILE * 16] __attribute__((aligned(64)));
    const int columns = columns_for(rows), first = first_group(keys->places);
    shape_for_few(columns);
    turn_queries(queries, rows, depth, columns, w->keys);
    for (int g = first; g < end; g++) {
        const Rows group = group_of_keys(keys, each, g * TILE_ROWS, (bf16 *)w->values + g * TILE_ROWS * n);
        score_keys(&group, ahead + g * TILE_ROWS, n, w->keys, columns, found + g * TILE_ROWS * columns);
    }
    turn_found(found, first * TILE_ROWS, end * TILE_ROWS, rows, scores);
}

/* The keys of the tile at `start` that row `i` of a head sees. */
INLINE void seen_of(const Span *s, int i, int64_t start, int *first, int *last) {
    int64_t query = i / s->group, position = s->first_position + query;
    int64_t end = low(last_seen(s->batch, s->first_row + query, position) + 1, s->key_end);
    *first = (int)low(TILE, high(0, first_visible(s->layer, position) - start));
    *last = (int)low(TILE, end - start);
}

/* Weights of the rows of one head. */
static void weigh_head(const Span *s, const Tensors *t, const Places *places, int64_t head, int64_t start, Workspace *w) {
    float key_scale_buffer[TILE], value_scale_buffer[TILE];
    const int64_t kv_head = s->first_head + head, first_row = head * s->rows_per_head;
    const float *key_scales = tile_scales(s->layer, t->k_token_scales, kv_head, places, key_scale_buffer);
    const float *value_scales = tile_scales(s->layer, t->v_token_scales, kv_head, places, value_scale_buffer);
    const float scale = t->k_scales ? s->layer->scale * t->k_scales[kv_head] : s->layer->scale;
    for (int64_t row = first_row; row < first_row + s->rows_per_head; row++) {
        int first, last;
        seen_of(s, (int)(row - first_row), start, &first, &last);
        w->segment.largest[row] =
            vf_hmax(scale_scores(w->scores + row * TILE, first, last, scale, s->layer->soft_cap, key_scales));
    }
    for (int64_t row = first_row; row < first_row + s->rows_per_head; row++) {
        int first, last;
        word *weights = w->weights + row * (TILE / PAIRS);
        seen_of(s, (int)(row - first_row), start, &first, &last);
        memset(weights, 0, TILE * sizeof(bf16));
        vf sum = weigh_scores(w->scores + row * TILE, weights, first, last, w->segment.largest[row], vf_set(0), value_scales);
        vf_store(w->segment.sums + row * VL, sum);
    }
}

static void sum_head(const Stream *values, const Stream *then, int64_t head, Workspace *w) {
    const Span *s = values->span;
    const int rows = s->rows_per_head, columns = s->columns, width = (end_group(values->places) + 1) / 2 * PAIR;
    const stored *each[TILE], *ahead[TILE];
    tile_rows(head_of(values, head), values->places, each);
    rows_ahead(values, then, head, each, ahead);
    pack_values(each, ahead, width, values->channels, columns, w->values);
    sum_rows(w->weights + head * rows * (TILE / PAIRS), w->values, w->segment.values + head * rows * columns, rows, width,
             columns);
}

static void attend_segment(const Span *s, const Span *next, const Tensors *t, Workspace *w, int64_t segment) {
    static const Places nowhere;
    Places here, there = nowhere;
    const int64_t start = segment * SEGMENT;
    const int more = start + SEGMENT < s->end, n = (int)s->layer->head_dim; /* more: of this task */
    find_places(s, start, &here);
    if (more) find_places(s, start + SEGMENT, &there);
    else if (next) find_places(next, next->begin / SEGMENT * SEGMENT, &there);
    const Stream keys = {s, &here, t->k_cache, n}, values = {s, &here, t->v_cache, (int)s->layer->value_dim};
    const Stream later = {more || !next ? s : next, &there, t->k_cache, n};
    for (int64_t head = 0; head < s->num_heads; head++) score_head(&keys, &values, head, w);
    for (int64_t head = 0; head < s->num_heads; head++) weigh_head(s, t, &here, head, start, w);
    for (int64_t head = 0; head < s->num_heads; head++) sum_head(&values, &later, head, w);
}
