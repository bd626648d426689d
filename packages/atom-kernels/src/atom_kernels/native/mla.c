/* Multi-head latent attention around the attention itself: norm, rotation and cache write of latents, rotation of
 * queries, and the products of each head with its part of the weights. */
#include "e4m3.h"
#include "linear.h"
#include <stdlib.h>

/* Rows of x that one task takes through a panel of weights. */
#define TASK_ROWS 64
/* Below these a second thread costs more than it gives. */
#define PARALLEL_PRODUCTS 65536
#define PARALLEL_VALUES 16384
#define MAX_LATENT 1024 /* elements, with the rotary key */

typedef struct {
    void *memory;
    size_t size;
} Buffer;

/* Kept from call to call; each thread has its own. */
static _Thread_local Buffer rows_buffer;

static void *reserve(Buffer *buffer, size_t size) {
    if (buffer->size < size) {
        free(buffer->memory);
        size = (size + 4095) / 4096 * 4096;
        buffer->memory = aligned_alloc(4096, size);
        buffer->size = buffer->memory ? size : 0;
    }
    return buffer->memory;
}

INLINE int64_t low(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

#define T float
#define NAME(x) x##_f32
#define WIDEN(p) vf_load(p)
#define ROUND(p, v) vf_store(p, v)
#define TO_FLOAT(x) (x)
#define FROM_FLOAT(x) (x)
#include "mla_heads.h"
#undef T
#undef NAME
#undef WIDEN
#undef ROUND
#undef TO_FLOAT
#undef FROM_FLOAT

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
int64_t has_mla_bf16(void) { return 1; }

#define T bf16
#define NAME(x) x##_bf16
#define WIDEN(p) vf_load_bf16(p)
#define ROUND(p, v) vf_store_bf16(p, v)
#define TO_FLOAT(x) bf16_to_float(x)
#define FROM_FLOAT(x) float_to_bf16(x)
#include "mla_heads.h"
#else
int64_t has_mla_bf16(void) { return 0; }

void head_products_bf16(const bf16 *x, const bf16 *weight, bf16 *out, int64_t rows, int64_t heads, int64_t k_size,
                        int64_t n_size, int64_t x_row, int64_t x_head, int64_t w_head, int64_t out_row,
                        int64_t out_head) {}
void write_latents_bf16(const bf16 *kv, const bf16 *norm, const int64_t *positions, const float *cos_sin,
                        const int64_t *slots, void *cache, const float *scale, float *token_scales, int64_t is_e4m3,
                        int64_t tokens, int64_t kv_row, int64_t rank, int64_t rope, int64_t interleaved, float eps) {}
void read_latents_bf16(const uint8_t *cache, const int64_t *slots, const float *scale, const float *token_scales, bf16 *out,
                       int64_t count, int64_t n) {}
void place_queries_bf16(const bf16 *q, const int64_t *positions, const float *cos_sin, bf16 *out, int64_t tokens,
                        int64_t heads, int64_t q_row, int64_t nope, int64_t rope, int64_t copied, int64_t out_head,
                        int64_t interleaved) {}
void spread_keys_bf16(const bf16 *keys, bf16 *out, int64_t tokens, int64_t heads, int64_t keys_row, int64_t rope,
                      int64_t out_head) {}
#endif
