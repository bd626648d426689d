/* Latent attention for one element type; include once for each, after linear.h and after defining
 *   T, NAME(x)                     the element and the name of x for it
 *   WIDEN(p), ROUND(p, v)          VL elements to and from floats
 *   TO_FLOAT(x), FROM_FLOAT(x)     one element */

/* out[m, h, :] = weight[h] @ x[m, h, :] for all rows and heads. The strides are in elements; that of heads in x is 0
 * where all heads share a row. A row's result does not depend on the others. */
void NAME(head_products)(const T *x, const T *weight, T *out, int64_t rows, int64_t heads, int64_t k_size,
                         int64_t n_size, int64_t x_row, int64_t x_head, int64_t w_head, int64_t out_row,
                         int64_t out_head) {
    int64_t panels = parts_of(n_size, PANEL_ROWS), chunks = parts_of(rows, TASK_ROWS);
    int gathered = rows > 1 && x_row != k_size;
#pragma omp parallel for schedule(dynamic) if (rows * heads * k_size * n_size > PARALLEL_PRODUCTS)
    for (int64_t unit = 0; unit < heads * panels * chunks; unit++) {
        int64_t head = unit / (panels * chunks), from = unit / chunks % panels * PANEL_ROWS;
        int64_t first = unit % chunks * TASK_ROWS, count = low(TASK_ROWS, rows - first);
        int64_t width = low(PANEL_ROWS, n_size - from), whole = width / TILE * TILE;
        const T *in = x + first * x_row + head * x_head, *w = weight + head * w_head + from * k_size;
        T *to = out + first * out_row + head * out_head + from;
        if (gathered) {
            T *copy = reserve(&rows_buffer, TASK_ROWS * k_size * sizeof(T));
            for (int64_t m = 0; m < count; m++) memcpy(copy + m * k_size, in + m * x_row, k_size * sizeof(T));
            in = copy;
        }
        if (whole) NAME(panel)(in, w, 0, to, 0, whole, count, k_size, out_row, 0);
        for (int64_t m = 0; m < count; m++)
            for (int64_t n = whole; n < width; n++)
                to[m * out_row + n] = NAME(single)(in + m * k_size, w + n * k_size, 0, k_size);
    }
}

/* Copies n elements turned by the angles of one position. */
INLINE void NAME(rotate)(const T *in, T *out, const float *cos_sin, int64_t n, int64_t interleaved) {
    int64_t half = n / 2, step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        float a = TO_FLOAT(in[i * step]), b = TO_FLOAT(in[i * step + other]);
        out[i * step] = FROM_FLOAT(a * cos_sin[i] - b * cos_sin[half + i]);
        out[i * step + other] = FROM_FLOAT(b * cos_sin[i] + a * cos_sin[half + i]);
    }
}

INLINE void NAME(normalize)(const T *in, const T *norm, T *out, int64_t n, float eps) {
    vf squares = vf_set(0.0f);
    float sum = 0.0f;
    int64_t d = 0;
    for (; d + VL <= n; d += VL) squares += WIDEN(in + d) * WIDEN(in + d);
    for (; d < n; d++) sum += TO_FLOAT(in[d]) * TO_FLOAT(in[d]);
    float factor = 1.0f / sqrtf((vf_hsum(squares) + sum) / (float)n + eps);
    for (d = 0; d + VL <= n; d += VL) ROUND(out + d, WIDEN(in + d) * factor * WIDEN(norm + d));
    for (; d < n; d++) out[d] = FROM_FLOAT(TO_FLOAT(in[d]) * factor * TO_FLOAT(norm[d]));
}

/* Latent and rotary key of each token to its slot: normed if there is a norm, rotated if there are angles. A cache in
 * e4m3 holds them divided by `scale`, or by a scale of each slot's own in `token_scales`; NULL for none. */
void NAME(write_latents)(const T *kv, const T *norm, const int64_t *positions, const float *cos_sin, const int64_t *slots,
                         void *cache, const float *scale, float *token_scales, int64_t is_e4m3, int64_t tokens,
                         int64_t kv_row, int64_t rank, int64_t rope, int64_t interleaved, float eps) {
    int64_t n = rank + rope;
#pragma omp parallel for schedule(static) if (tokens * n > PARALLEL_VALUES)
    for (int64_t t = 0; t < tokens; t++) {
        int64_t slot = slots[t];
        if (slot < 0) continue;
        const T *in = kv + t * kv_row;
        T prepared[MAX_LATENT], *out = is_e4m3 ? prepared : (T *)cache + slot * n;
        if (norm) NAME(normalize)(in, norm, out, rank, eps);
        else memcpy(out, in, rank * sizeof(T));
        if (cos_sin) NAME(rotate)(in + rank, out + rank, cos_sin + positions[t] * rope, rope, interleaved);
        else memcpy(out + rank, in + rank, rope * sizeof(T));
        if (!is_e4m3) continue;
        float row[MAX_LATENT];
        for (int64_t d = 0; d < n; d++) row[d] = TO_FLOAT(out[d]);
        store_e4m3_row(row, n, (uint8_t *)cache + slot * n, scale, token_scales ? token_scales + slot : NULL);
    }
}

/* What a cache in e4m3 holds at some slots, times its scales. */
void NAME(read_latents)(const uint8_t *cache, const int64_t *slots, const float *scale, const float *token_scales, T *out,
                        int64_t count, int64_t n) {
#pragma omp parallel for schedule(static) if (count * n > PARALLEL_VALUES)
    for (int64_t t = 0; t < count; t++) {
        const uint8_t *in = cache + slots[t] * n;
        T *to = out + t * n;
        float factor = token_scales ? token_scales[slots[t]] : scale ? *scale : 1;
        int64_t d = 0;
        for (; d + VL <= n; d += VL) ROUND(to + d, vf_load_e4m3(in + d) * factor);
        for (; d < n; d++) to[d] = FROM_FLOAT(e4m3_to_vf((vu){in[d]})[0] * factor);
    }
}

/* Queries [tokens, heads, nope + rope] to heads that lie `out_head` apart: the first `copied` elements as they are (all
 * of nope or none), the rotary part at the end, rotated if there are angles. */
void NAME(place_queries)(const T *q, const int64_t *positions, const float *cos_sin, T *out, int64_t tokens, int64_t heads,
                         int64_t q_row, int64_t nope, int64_t rope, int64_t copied, int64_t out_head,
                         int64_t interleaved) {
#pragma omp parallel for schedule(static) if (tokens * heads * (copied + rope) > PARALLEL_VALUES)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            const T *in = q + t * q_row + h * (nope + rope);
            T *to = out + (t * heads + h) * out_head, *end = to + out_head - rope;
            if (copied) memcpy(to, in, copied * sizeof(T));
            if (cos_sin) NAME(rotate)(in + nope, end, cos_sin + positions[t] * rope, rope, interleaved);
            else memcpy(end, in + nope, rope * sizeof(T));
        }
}

/* The rotary key of each token, which all heads share, to each of them. */
void NAME(spread_keys)(const T *keys, T *out, int64_t tokens, int64_t heads, int64_t keys_row, int64_t rope,
                       int64_t out_head) {
#pragma omp parallel for schedule(static) if (tokens * heads * rope > PARALLEL_VALUES)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++)
            memcpy(out + (t * heads + h) * out_head, keys + t * keys_row, rope * sizeof(T));
}
