/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] in bfloat16 by AMX tiles, in float32 sums. One copy of the weight, [N / 16] blocks
 * as `linear_tiles.h` reads them, serves one row and thousands, and is read in its order. */
#include "linear_tiles.h"

/* Few rows pass while the weight is read: it is asked for so many tiles ahead. Where there are many, those behind the first
 * ask for the next outputs, which memory brings while they are multiplied. */
#define TILES_AHEAD 2

void linear_tiles(const bf16 *x, const bf16 *tiles, const bf16 *bias, bf16 *out, int64_t m_size, int64_t k_size,
                  int64_t n_size) {
    const linear_t linear = {x, bias, out, m_size, k_size, n_size};
    const int few = m_size <= PAIR;
    const int64_t ahead = few ? TILES_AHEAD * TILE_ROWS * DEPTH : PAIR * k_size;
#pragma omp parallel if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        int shaped = 0;
        pairs_of_thread(n_size, &from, &to);
        for (int64_t n = from * PAIR; n < to * PAIR; n += PAIR)
            all_rows(&linear, tiles + n * k_size, n, few ? 0 : PAIR, ahead, &shaped);
        RELEASE_TILES();
    }
}
