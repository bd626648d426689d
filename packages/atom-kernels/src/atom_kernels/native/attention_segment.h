/* A segment of keys by vectors, tile by tile. */
#pragma once
#include "attention_products.h"

/* Takes the rows of one key/value head through the keys of the tile at `start`, while those of the tile that comes after
 * it, at `next`, are fetched: decodes are bound by memory. */
static void attend_tile(const Span *s, const Tensors *t, Workspace *w, int64_t head, int64_t start,
                        const Places *places, int64_t next_head, const Places *next) {
    const stored *rows[TILE], *ahead[TILE];
    int width = (places->last + VL - 1) / VL * VL; /* keys of the tile, up to the last that any row sees */
    int columns = s->columns, n = (int)s->layer->head_dim, first_row = (int)head * s->rows_per_head;
    int64_t offset = (s->first_head + head) * s->layer->head_stride, next_offset = next_head * s->layer->head_stride;
    tile_rows(t->k_cache + offset, places, rows);
    tile_rows(t->k_cache + next_offset, next, ahead);
    multiply_keys(s->rows_per_head, rows, ahead, width, n, w->queries + (int64_t)first_row * (n / PAIRS), w->keys, w->scores);
    float key_scale_buffer[TILE], value_scale_buffer[TILE];
    int64_t kv_head = s->first_head + head;
    const float *key_scales = tile_scales(s->layer, t->k_token_scales, kv_head, places, key_scale_buffer);
    const float *value_scales = tile_scales(s->layer, t->v_token_scales, kv_head, places, value_scale_buffer);
    float scale = t->k_scales ? s->layer->scale * t->k_scales[kv_head] : s->layer->scale;
    for (int i = 0; i < s->rows_per_head; i++) {
        int64_t query = i / s->group, position = s->first_position + query;
        int64_t end = low(last_seen(s->batch, s->first_row + query, position) + 1, s->key_end);
        int64_t seen = low(TILE, high(0, first_visible(s->layer, position) - start));
        softmax_row(w->scores + i * TILE, w->weights + i * (TILE / PAIRS), w->segment, first_row + i, columns, (int)seen,
                    (int)low(TILE, end - start), scale, s->layer->soft_cap, key_scales, value_scales);
    }
    tile_rows(t->v_cache + offset, places, rows);
    tile_rows(t->v_cache + next_offset, next, ahead);
    multiply_values(s->rows_per_head, rows, ahead, width, (int)s->layer->value_dim, columns, w->weights, w->values,
                    w->segment.values + (int64_t)first_row * columns);
}

static void reset(State state, int64_t rows, int columns) {
    for (int64_t i = 0; i < rows; i++) state.largest[i] = -INFINITY;
    memset(state.sums, 0, rows * VL * 4);
    memset(state.values, 0, rows * columns * 4);
}

static void attend_segment(const Span *s, const Span *next, const Tensors *t, Workspace *w, int64_t segment) {
    static const Places nowhere;
    Places here, there;
    int64_t end = low(s->end, (segment + 1) * SEGMENT), start = high(segment * SEGMENT, s->begin / TILE * TILE);
    reset(w->segment, s->num_rows, s->columns);
    find_places(s, start, &here);
    for (; start < end; start += TILE, here = there) {
        int more = start + TILE < s->end; /* in this task; the next tile may belong to the next segment */
        if (more) find_places(s, start + TILE, &there);
        else if (next) find_places(next, next->begin / TILE * TILE, &there);
        else there = nowhere;
        for (int64_t head = 0; head < s->num_heads; head++)
            attend_tile(s, t, w, head, start, &here, head + (more || !next ? s : next)->first_head, &there);
    }
}
