/* The chosen experts of each token, whose matrices are codes of eight or four bits: rows and sums are float32.
 *
 * A thread decodes a panel of an expert's rows into its caches once and multiplies all rows of x that chose the expert; few
 * rows of x are multiplied while decoding. A token's result is the same, to the bit, whatever the other tokens. */
#include "linear_quantized.c"
#include "moe_rows.h"
#include "silu.h"

/* One matrix of all experts. */
typedef struct {
    int64_t kind;
    weights_t weights;
} packed_t;

static int64_t multiply_expert(const float *x, const packed_t *matrices, int64_t first, const float *bias, float *out,
                               int64_t from, int64_t to, int64_t rows, int64_t k_size, int64_t n_size);

#define T float
#define NAME(x) x##_f32
#define WIDEN(p) vf_load(p)
#define ROUND(p, v) vf_store(p, v)
#define MATRICES packed_t
#define MULTIPLY multiply_expert
#include "moe_experts.h"

static int64_t multiply_expert(const float *x, const packed_t *matrices, int64_t first, const float *bias, float *out,
                               int64_t from, int64_t to, int64_t rows, int64_t k_size, int64_t n_size) {
    const int kind = (int)matrices->kind;
    if (rows <= max_few_rows_f32 && (to - from) % TILE == 0) {
        const weights_t expert = weights_from(kind, &matrices->weights, first);
        multiply_packed_f32(kind, &expert, x, bias, out, rows, from, to, n_size);
        return 1;
    }
    float *panel = panel_of_thread((to - from) * k_size * (int64_t)sizeof(float));
    if (!panel) return 0;
    decode_f32(kind, &matrices->weights, first + from, first + to, panel);
    return multiply_f32(x, panel - from * k_size, bias, out, from, to, rows, k_size, n_size);
}
