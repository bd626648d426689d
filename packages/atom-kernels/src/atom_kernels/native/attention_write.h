/* What one attention layer is given in one step, and what is done before it attends: head norms, rotation, cache write. */
#pragma once
#include "attention_tile.h"

typedef struct {
    int64_t num_heads, num_kv_heads, head_dim, value_dim, block_size; /* value_dim: of a value and of the output */
    int64_t block_stride, token_stride, head_stride; /* of the cache, keys and values alike, in elements */
    int64_t window;                                  /* 0: none */
    float scale, soft_cap;                           /* soft_cap 0: none */
} Layer;

typedef struct {
    const int32_t *query_starts, *query_ends, *seq_lens, *block_table;
    const int32_t *key_ends; /* positions from which on a request has no keys, NULL: its last query's is the last */
    const int64_t *slot_mapping;
    int64_t block_table_stride, num_reqs, num_tokens;
    const int32_t *sees_until; /* the last position that a token sees, where that lies behind its own; NULL: none does */
} Batch;

typedef struct {
    const int64_t *positions; /* NULL: neither norm nor rotation */
    const float *cos_sin;     /* [positions, rotary_dim], NULL: no rotation */
    const element *q_norm, *k_norm;
    int64_t rotary_dim, interleaved;
    float eps;
} Prologue;

typedef struct {
    const element *q, *k, *v;
    stored *k_cache, *v_cache;
    element *out;
    const float *k_scales, *v_scales; /* [num_kv_heads]: a number is what is cached of it times this, NULL: as cached */
    float *k_token_scales, *v_token_scales; /* likewise [slots, num_kv_heads], written with each token */
    const float *sinks;                   /* [num_heads], NULL: none */
    float *log_sums;                      /* [rows, num_heads] of the exponentials of the scores, NULL: not wanted */
    int64_t q_stride, k_stride, v_stride; /* from token to token, in elements */
    int64_t num_rows;                     /* of q and out; those past the last request become zeros */
} Tensors;

static void normalize_head(float *x, const element *weight, int n, float eps) {
    vf squares = vf_set(0);
    float sum = 0;
    int d = 0;
    for (; d + VL <= n; d += VL) squares += vf_load(x + d) * vf_load(x + d);
    for (; d < n; d++) sum += x[d] * x[d];
    float factor = 1.0f / sqrtf((vf_hsum(squares) + sum) / (float)n + eps);
    for (d = 0; d < n; d++) x[d] = element_to_float(float_to_element(x[d] * factor * element_to_float(weight[d])));
}

static void rotate_head(float *x, const float *cos_sin, int rotary_dim, int interleaved) {
    int half = rotary_dim / 2;
    const float *cosine = cos_sin, *sine = cos_sin + half;
    if (interleaved) {
        for (int i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosine[i] - b * sine[i];
            x[2 * i + 1] = b * cosine[i] + a * sine[i];
        }
    } else {
        float *other = x + half;
        for (int i = 0; i < half; i++) {
            float a = x[i], b = other[i];
            x[i] = a * cosine[i] - b * sine[i];
            other[i] = b * cosine[i] + a * sine[i];
        }
    }
}

static void prepare_head(const element *in, element *out, const Prologue *prologue, const element *norm, int n,
                         int64_t token) {
    float x[MAX_HEAD_DIM];
    int d = 0;
    for (; d + VL <= n; d += VL) vf_store(x + d, load_elements(in + d));
    for (; d < n; d++) x[d] = element_to_float(in[d]);
    if (norm) normalize_head(x, norm, n, prologue->eps);
    if (prologue->cos_sin)
        rotate_head(x, prologue->cos_sin + prologue->positions[token] * prologue->rotary_dim,
                    (int)prologue->rotary_dim, (int)prologue->interleaved);
    for (d = 0; d + VL <= n; d += VL) store_elements(out + d, vf_load(x + d));
    for (; d < n; d++) out[d] = float_to_element(x[d]);
}

/* Puts one head of a token into the cache. `head_scale`, `token_scale`: those of its head, NULL for none. */
static void store_row(const element *row, int n, stored *out, const float *head_scale, float *token_scale) {
#ifdef CACHE_E4M3
    float x[MAX_HEAD_DIM];
    int d = 0;
    for (; d + VL <= n; d += VL) vf_store(x + d, load_elements(row + d));
    for (; d < n; d++) x[d] = element_to_float(row[d]);
    store_e4m3_row(x, n, out, head_scale, token_scale);
#else
    memcpy(out, row, n * sizeof(element));
#endif
}

INLINE const float *scale_at(const float *scales, int64_t i) { return scales ? scales + i : NULL; }

/* Writes the keys and values of one token to its slot, and its queries to `q_out` if they change. */
static void prepare_token(const Layer *layer, const Batch *batch, const Prologue *prologue, const Tensors *t,
                          element *q_out, int64_t token) {
    int n = (int)layer->head_dim;
    if (prologue->positions)
        for (int64_t h = 0; h < layer->num_heads; h++)
            prepare_head(t->q + token * t->q_stride + h * n, q_out + (token * layer->num_heads + h) * n, prologue,
                         prologue->q_norm, n, token);
    int64_t slot = batch->slot_mapping[token];
    if (slot < 0) return;
    int64_t place = slot / layer->block_size * layer->block_stride + slot % layer->block_size * layer->token_stride;
    for (int64_t h = 0; h < layer->num_kv_heads; h++) {
        const element *k = t->k + token * t->k_stride + h * n, *v = t->v + token * t->v_stride + h * layer->value_dim;
        int64_t at = place + h * layer->head_stride, scale_place = slot * layer->num_kv_heads + h;
        element prepared[MAX_HEAD_DIM];
        if (prologue->positions) {
            prepare_head(k, prepared, prologue, prologue->k_norm, n, token);
            k = prepared;
        }
        store_row(k, n, t->k_cache + at, scale_at(t->k_scales, h), (float *)scale_at(t->k_token_scales, scale_place));
        store_row(v, (int)layer->value_dim, t->v_cache + at, scale_at(t->v_scales, h),
                  (float *)scale_at(t->v_token_scales, scale_place));
    }
}
