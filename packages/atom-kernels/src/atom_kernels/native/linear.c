/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] in bfloat16, float32 sums, the weight as loaded.
 *
 * A tile holds 16 sums of 16 lanes over K, (rows of weight) x (rows of x) = 16x1, 8x2 or 4x4, and adds up their lanes
 * at the end. Each thread walks over its own panels of weight rows, which stay in its L2 while the rows of x pass.
 * A row of the result does not depend on the other rows. */
#include "vector.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)

int64_t linear_is_compiled(void) { return 1; }

#define TILE 16
/* Rows of weight that pass in one go: as many as leave room in an L2. */
#define PANEL_BYTES 262144
#define PANEL_ROWS 128

INLINE __m512 add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }

/* Lane i of the result is the sum of the lanes of v[i]. */
INLINE __m512 sum_lanes(__m512 v[TILE]) {
    __m512 pairs[8], quads[4];
    for (int i = 0; i < 8; i++) {
        __m512 a = v[2 * i], b = v[2 * i + 1];
        pairs[i] = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        quads[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    /* Each 128-bit lane of quads[i] now holds partial sums of v[4i .. 4i+3]. */
    __m512 left = add(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    __m512 right = add(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return add(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd));
}

INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

INLINE __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

/* NR rows of weight against MR rows of x; x rows past `rows` repeat the last one and are not stored. `ahead` asks for the
 * weight that many rows further on: few streams alone do not keep the memory busy. */
#define DEFINE_TILE(NR, MR)                                                                                        \
    INLINE void tile_##NR##x##MR(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *out, int64_t rows,     \
                                 int64_t k_size, int64_t n_size, const int ahead) {                                \
        const bf16 *x_row[MR];                                                                                     \
        __m512 sums[TILE];                                                                                         \
        for (int m = 0; m < MR; m++) x_row[m] = x + (m < rows ? m : rows - 1) * k_size;                            \
        for (int i = 0; i < TILE; i++) sums[i] = _mm512_setzero_ps();                                              \
        int64_t k = 0;                                                                                             \
        for (; k + 32 <= k_size; k += 32) {                                                                        \
            __m512i xs[MR];                                                                                        \
            for (int m = 0; m < MR; m++) xs[m] = _mm512_loadu_si512(x_row[m] + k);                                 \
            for (int n = 0; n < NR; n++) {                                                                         \
                __m512i w = _mm512_loadu_si512(weight + n * k_size + k);                                           \
                if (ahead) _mm_prefetch((const char *)(weight + (n + ahead) * k_size + k), _MM_HINT_T0);           \
                for (int m = 0; m < MR; m++) sums[m * NR + n] = dot(sums[m * NR + n], xs[m], w);                   \
            }                                                                                                      \
        }                                                                                                          \
        if (k < k_size) {                                                                                          \
            __mmask32 mask = (__mmask32)((1ull << (k_size - k)) - 1);                                              \
            for (int n = 0; n < NR; n++) {                                                                         \
                __m512i w = _mm512_maskz_loadu_epi16(mask, weight + n * k_size + k);                               \
                for (int m = 0; m < MR; m++)                                                                       \
                    sums[m * NR + n] = dot(sums[m * NR + n], _mm512_maskz_loadu_epi16(mask, x_row[m] + k), w);     \
            }                                                                                                      \
        }                                                                                                          \
        __m512 total = sum_lanes(sums);                                                                            \
        if (bias) {                                                                                                \
            bf16 repeated[TILE];                                                                                   \
            for (int m = 0; m < MR; m++) memcpy(repeated + m * NR, bias, NR * sizeof(bf16));                       \
            total = add(total, widen(_mm256_loadu_si256((const __m256i *)repeated)));                              \
        }                                                                                                          \
        bf16 rounded[TILE];                                                                                        \
        _mm256_storeu_si256((__m256i *)rounded, (__m256i)_mm512_cvtneps_pbh(total));                               \
        for (int m = 0; m < MR && m < rows; m++) memcpy(out + m * n_size, rounded + m * NR, NR * sizeof(bf16));    \
    }

DEFINE_TILE(16, 1)
DEFINE_TILE(8, 2)
DEFINE_TILE(4, 4)

/* Fewer than 16 rows of weight are left: one sum at a time, in the same order of additions. */
static void narrow(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *out, int64_t k_size) {
    __m512 sums[TILE];
    for (int i = 0; i < TILE; i++) sums[i] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + 32 <= k_size; k += 32) sums[0] = dot(sums[0], _mm512_loadu_si512(x + k), _mm512_loadu_si512(weight + k));
    if (k < k_size) {
        __mmask32 mask = (__mmask32)((1ull << (k_size - k)) - 1);
        sums[0] = dot(sums[0], _mm512_maskz_loadu_epi16(mask, x + k), _mm512_maskz_loadu_epi16(mask, weight + k));
    }
    __m512 total = sum_lanes(sums);
    if (bias) total = add(total, _mm512_set1_ps(bf16_to_float(*bias)));
    bf16 rounded[TILE];
    _mm256_storeu_si256((__m256i *)rounded, (__m256i)_mm512_cvtneps_pbh(total));
    *out = rounded[0];
}

#define FOR_ROWS_OF_WEIGHT(NR, MR, AHEAD)                                                                          \
    for (int64_t n = from; n < to; n += NR)                                                                        \
        tile_##NR##x##MR(x + m * k_size, weight + n * k_size, bias ? bias + n : 0, out + m * n_size + n, m_size - m, \
                         k_size, n_size, AHEAD)

/* Weight rows [from, to), a multiple of 16 of them, against all rows of x. */
static void panel(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *out, int64_t from, int64_t to,
                  int64_t m_size, int64_t k_size, int64_t n_size) {
    for (int64_t m = 0; m < m_size; m += 4) {
        if (m_size - m == 1)
            FOR_ROWS_OF_WEIGHT(16, 1, 0);
        else if (m_size - m == 2)
            FOR_ROWS_OF_WEIGHT(8, 2, 16);
        else if (m == 0)
            FOR_ROWS_OF_WEIGHT(4, 4, 4);
        else
            FOR_ROWS_OF_WEIGHT(4, 4, 0);
    }
}

void linear_bf16(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *out, int64_t m_size, int64_t k_size,
                 int64_t n_size) {
    int64_t tiles = n_size / TILE, rows = PANEL_BYTES / (2 * k_size) / TILE * TILE;
    rows = rows > PANEL_ROWS ? PANEL_ROWS : rows < TILE ? TILE : rows;
#pragma omp parallel if (n_size * k_size > 65536)
    {
        int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t first = tiles * thread / threads * TILE, last = tiles * (thread + 1) / threads * TILE;
        for (int64_t from = first; from < last; from += rows)
            panel(x, weight, bias, out, from, from + rows < last ? from + rows : last, m_size, k_size, n_size);
    }
    for (int64_t m = 0; m < m_size; m++)
        for (int64_t n = tiles * TILE; n < n_size; n++)
            narrow(x + m * k_size, weight + n * k_size, bias ? bias + n : 0, out + m * n_size + n, k_size);
}

#else

int64_t linear_is_compiled(void) { return 0; }
void linear_bf16(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *out, int64_t m_size, int64_t k_size,
                 int64_t n_size) {}

#endif
