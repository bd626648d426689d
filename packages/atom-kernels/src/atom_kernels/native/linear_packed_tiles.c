/* The linear over packed weights in bfloat16 by AMX tiles: a thread decodes the weight of 32 outputs into its caches, and
 * multiplies all rows with it. See `packed_tiles.h` for how the weight lies. */
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include "linear_tiles.h"
#include "packed_tiles.h"
#include "panel.h"

/* Returns whether there was memory for what is decoded. */
int64_t linear_packed_tiles(int64_t kind, const bf16 *x, const uint8_t *codes, const float *scale, const float *minimum,
                            const float *zero, const bf16 *bias, bf16 *out, int64_t m_size, int64_t k_size, int64_t n_size,
                            int64_t group) {
    const tiled_weights_t weights = {codes, scale, minimum, zero, k_size, group};
    const linear_t linear = {x, bias, out, m_size, k_size, n_size};
    int64_t failed = 0;
#pragma omp parallel reduction(| : failed) if (n_size * k_size > PARALLEL_ELEMENTS)
    {
        int64_t from, to;
        int shaped = 0;
        bf16 *decoded = panel_of_thread(PAIR * k_size * (int64_t)sizeof(bf16));
        pairs_of_thread(n_size, &from, &to);
        for (int64_t pair = from; decoded && pair < to; pair++) {
            decode_tiles((int)kind, &weights, 2 * pair, 2 * pair + 2, decoded);
            all_rows(&linear, decoded, pair * PAIR, 0, 0, &shaped);
        }
        failed = !decoded;
        RELEASE_TILES();
    }
    return !failed;
}
#else
#include "vector.h"
int64_t has_tiles(void) { return 0; }
int64_t linear_packed_tiles(int64_t kind, const bf16 *x, const uint8_t *codes, const float *scale, const float *minimum,
                            const float *zero, const bf16 *bias, bf16 *out, int64_t m_size, int64_t k_size, int64_t n_size,
                            int64_t group) { return 0; }
#endif
