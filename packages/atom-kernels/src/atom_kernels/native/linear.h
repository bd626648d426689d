/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] in float32 or bfloat16, or bfloat16 with a float32 result: float32 sums, the
 * weight as loaded.
 *
 * A tile holds VL sums of VL lanes over K, (rows of weight) x (rows of x), and adds up their lanes at the end. Each thread
 * walks over its own panels of weight rows, which stay in its L2 while the rows of x pass. Every sum is added in an order
 * that depends on K alone: a row of the result is the same, to the bit, whatever the other rows and their number. */
#pragma once
#include "lanes.h"

/* Rows of weight that pass in one go: as many as leave room in an L2. */
#define PANEL_BYTES 262144
#define PANEL_ROWS 128
/* Bytes of a row, so that four rows of x and four of weight fit into an L1. */
#define CHUNK_BYTES 4096
/* Below this many products a second thread costs more than it gives. */
#define PARALLEL_ELEMENTS 65536

/* Keeps a value in a register for its next uses. With 16 registers GCC makes the load a part of each product, and then a
 * tile waits for loads: there are 10 for 8 products in place of 6. */
#if VL == 8
#define KEEP(value) __asm__("" : "+x"(value))
#else
#define KEEP(value)
#endif

/* Rows of x in a tile. */
#if VL == 16
#define MAX_MR 4
#else
#define MAX_MR 2
#endif
/* Up to so many rows of x, reading the weight takes as long as arithmetic: its panels are small, and while one is
 * multiplied the next one is on its way to the L2. */
#define STREAMED_ROWS 32
#define STREAMED_PANEL_ROWS 32
/* A stream of weights is asked for so many bytes before they are needed: memory answers after about that many. */
#define BYTES_AHEAD 3072
/* From so many rows of x on, arithmetic takes longer than reading the weight, and three pass at a time (if VL is 8). */
#define MANY_ROWS 12

INLINE vf load_tail_f32(const float *p, int64_t count) {
    float lanes[VL] = {0};
    memcpy(lanes, p, count * sizeof(float));
    return vf_load(lanes);
}

/* A thread's part of all outputs: whole tiles, the last thread's with those that fill none. */
INLINE void outputs_of_thread(int64_t n_size, int64_t *from, int64_t *to) {
    int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num(), tiles = n_size / TILE;
    *from = tiles * thread / threads * TILE;
    *to = thread == threads - 1 ? n_size : tiles * (thread + 1) / threads * TILE;
}

#if VL == 8
/* Rows [from, to) of a panel ask for the weight `ahead` rows further on. */
typedef struct {
    int64_t from, to;
    int ahead;
} asking_t;

INLINE int ahead_of(asking_t asking, int64_t n) { return n >= asking.from && n < asking.to ? asking.ahead : 0; }

/* Which rows of a panel ask for the next one in pass `pass` of `passes`: memory has all of them to answer in. */
INLINE asking_t share_of_asking(int64_t from, int64_t to, int64_t pass, int64_t passes, int next) {
    return (asking_t){from + (to - from) * pass / passes, from + (to - from) * (pass + 1) / passes, next};
}
#endif

#define T float
#define OUT float
#define NAME(x) x##_f32
#define VEC vf
#define STEP VL
#define LOAD(p) vf_load(p)
#define LOAD_TAIL(p, count) load_tail_f32(p, count)
#define DOT(sum, a, b) ((sum) + (a) * (b))
#define ABREAST TILE
#define WIDEN(p) vf_load(p)
#define ROUND(p, v) vf_store(p, v)
#include "linear_tile.h"
#undef T
#undef VEC
#undef STEP
#undef LOAD
#undef LOAD_TAIL
#undef DOT
#undef ABREAST
#undef WIDEN

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
int64_t has_linear_bf16(void) { return 1; }

#define T bf16
#define OUT bf16
#define NAME(x) x##_bf16
#define VEC __m512i
#define STEP 32
#define LOAD(p) _mm512_loadu_si512(p)
#define LOAD_TAIL(p, count) _mm512_maskz_loadu_epi16((__mmask32)((1ull << (count)) - 1), p)
#define DOT(sum, a, b) ((vf)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
/* Products of pairs keep up with memory one row after the other, and a single stream is fetched ahead best. */
#define ABREAST 1
#define WIDEN(p) vf_load_bf16(p)
#define ROUND(p, v) vf_store_bf16(p, v)
#include "linear_tile.h"
#define OUT float
#define NAME(x) x##_bf16_f32
#define ROUND(p, v) vf_store(p, v)
#include "linear_tile.h"
#undef T
#undef VEC
#undef STEP
#undef LOAD
#undef LOAD_TAIL
#undef DOT
#undef ABREAST
#undef WIDEN
#else
int64_t has_linear_bf16(void) { return 0; }
void linear_bf16(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *out, int64_t m_size, int64_t k_size,
                 int64_t n_size) {}
void linear_bf16_f32(const bf16 *x, const bf16 *weight, const bf16 *bias, float *out, int64_t m_size, int64_t k_size,
                     int64_t n_size) {}
#endif
