/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] of bfloat16 in float32 by AMX tiles, the weight as loaded: it may be a table of
 * embeddings, too. Rows of the weight are left tiles; those of x are packed at each call, as right tiles. Sums come out by
 * outputs, and are transposed as they are stored. A row of the result is the same, to the bit, whatever the other rows and
 * their number. K is a multiple of 32. */
#include "linear_tiles.h"
#include "transpose.h"

/* All rows of x pass so many bytes of weights, which stay in an L2 meanwhile; where there are more than 32, those behind the
 * first ask for the next panel. */
#define PANEL_BYTES 262144

typedef struct {
    const bf16 *x, *weight, *bias;
    float *out;
    int64_t m_size, k_size, n_size;
} head_t;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sixteen rows of x from m on as right tiles, [K / 32][16 pairs of inputs][16 rows][2]; the last row stands for those past
 * it. */
static void pack_rows(const head_t *h, int64_t m, bf16 *tile) {
    for (int64_t k = 0; k < h->k_size; k += DEPTH, tile += TILE_ROWS * DEPTH)
        for (int i = 0; i < TILE_ROWS; i += VL)
            for (int pair = 0; pair < TILE_ROWS; pair += VL) {
                vu row[VL];
                for (int l = 0; l < VL; l++)
                    row[l] = *(const vu *)(h->x + least(m + i + l, h->m_size - 1) * h->k_size + k + 2 * pair);
                transpose(row);
                for (int l = 0; l < VL; l++) *(vu *)(tile + (pair + l) * DEPTH + 2 * i) = row[l];
            }
}

/* Stores sums of outputs [n, n + outputs) with `rows` rows of x from m on, and the bias. */
static void store(const head_t *h, const float *sums, int64_t m, int64_t rows, int64_t n, int64_t outputs) {
    for (int64_t i = 0; i < outputs; i += VL, n += VL, sums += VL * PAIR) {
        const int64_t count = least(outputs - i, VL);
        bf16 biases[VL] = {0};
        if (h->bias) memcpy(biases, h->bias + n, count * sizeof(bf16));
        const vf bias = vf_load_bf16(biases);
        for (int64_t j = 0; j < rows; j += VL) {
            vu row[VL];
            for (int l = 0; l < VL; l++) row[l] = *(const vu *)(sums + l * PAIR + j);
            transpose(row);
            float *out = h->out + (m + j) * h->n_size + n;
            for (int l = 0; l < VL && j + l < rows; l++, out += h->n_size) {
                const vf sum = (vf)row[l] + bias;
                if (count == VL)
                    vf_store(out, sum);
                else
                    memcpy(out, &sum, count * sizeof(float));
            }
        }
    }
}

/* Outputs [from, to) with all rows. Rows from `asking` on ask for the weight `ahead` elements further on meanwhile. */
static void panel(const head_t *h, const bf16 *packed, int64_t from, int64_t to, int64_t asking, int64_t ahead,
                  int *shaped) {
    float sums[PAIR * PAIR] __attribute__((aligned(64))) = {0};
    const int64_t k = h->k_size, row = k * sizeof(bf16), steps = k / DEPTH, sums_row = PAIR * sizeof(float);
    for (int64_t m = 0; m < h->m_size; m += PAIR)
        for (int64_t n = from; n < to; n += PAIR) {
            const int64_t rows = least(h->m_size - m, PAIR), outputs = least(to - n, PAIR);
            const bf16 *weight = h->weight + n * k;
            const right_t right = {(const char *)(packed + m * k), TILE_BYTES, TILE_ROWS * TILE_BYTES, TILE_ROWS * row,
                                   m == asking ? (const char *)(weight + ahead) : NULL};
            shape(shaped, (int)outputs);
            if (outputs <= TILE_ROWS)
                multiply(0, 1, weight, row, right, steps, 1, sums, sums_row);
            else if (rows <= TILE_ROWS)
                multiply(1, 0, weight, row, right, steps, 1, sums, sums_row);
            else
                multiply(1, 1, weight, row, right, steps, 1, sums, sums_row);
            store(h, sums, m, rows, n, outputs);
        }
}

/* `packed` has room for x with as many rows as fill blocks of 32. */
void linear_tiles_f32(const bf16 *x, const bf16 *weight, const bf16 *bias, float *out, int64_t m_size, int64_t k_size,
                      int64_t n_size, bf16 *packed) {
    const head_t head = {x, weight, bias, out, m_size, k_size, n_size};
    const int64_t fitting = PANEL_BYTES / (int64_t)sizeof(bf16) / k_size / PAIR * PAIR, size = fitting ? fitting : PAIR;
    const int few = m_size <= PAIR;
#pragma omp parallel if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        int shaped = 0;
#pragma omp for
        for (int64_t block = 0; block < (m_size + PAIR - 1) / PAIR * 2; block++)
            pack_rows(&head, block * TILE_ROWS, packed + block * TILE_ROWS * k_size);
        pairs_of_thread(n_size, &from, &to);
        to = least(to * PAIR, n_size);
        for (int64_t n = from * PAIR; n < to; n += size)
            panel(&head, packed, n, least(n + size, to), few ? 0 : PAIR, (few ? PAIR : size) * k_size, &shaped);
        RELEASE_TILES();
    }
}
