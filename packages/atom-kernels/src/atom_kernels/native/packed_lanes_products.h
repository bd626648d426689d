/* Products of packed weights with rows in bfloat16, as tiles: while weights are decoded, or of a panel of decoded ones. */
#pragma once
#include "packed_lanes_tile.h"
#include "panel.h"

/* Rows of x that are multiplied while decoding; more have a panel decoded. */
#define FEW_ROWS 16
/* Rows of x in a tile of a panel: registers hold the sums of a group and those of groups before. */
#define ROWS_OF_PANEL 6
/* Rows of x whose sums are kept at a time, in whole tiles. */
#define MOST_ROWS (42 * ROWS_OF_PANEL)
/* Columns and blocks of 16 outputs of a panel, as many as leave room in an L2. */
#define PANEL_COLUMNS 2048
#define PANEL_BLOCKS 4

/* Tiles of one kind of weights, by their rows of x: as they are decoded, and of a panel. Each is a function of its own:
 * in one with others GCC finds too few registers for them. */
typedef void tile_t(const place_t *, const lanes_t *, const numbers_t *, const rows_t *, ahead_t *);
typedef struct {
    int kind;
    tile_t *one_row, *four_rows, *four_rows_of_last, *eight_rows, *rows_of_block, *panel, *panel_of_last;
    void (*decode)(const lanes_t *, const numbers_t *, const uint8_t *codes, int64_t steps, uint8_t *panel);
} tiles_t;

#define DEFINE_TILE(NAME, source, kind, minima, NB, MR)                                                                 \
    static __attribute__((noinline)) void NAME(const place_t *place, const lanes_t *weights, const numbers_t *numbers, \
                                               const rows_t *rows, ahead_t *meanwhile) {                               \
        tile(source, kind, minima, NB, MR, place, weights, numbers, rows, meanwhile);                                  \
    }
#define DEFINE_TILES(NAME, kind, minima)                                                                          \
    DEFINE_TILE(NAME##_1, source_of(kind), kind, minima, 2, 1)                                                    \
    DEFINE_TILE(NAME##_4, source_of(kind), kind, minima, 2, 4)                                                    \
    DEFINE_TILE(NAME##_4_of_last, source_of(kind), kind, minima, 1, 4)                                            \
    DEFINE_TILE(NAME##_8, source_of(kind), kind, minima, 2, 8)                                                    \
    DEFINE_TILE(NAME##_of_block, source_of(kind), kind, minima, 1, SUMS_OF_TILE)                                  \
    DEFINE_TILE(NAME##_panel, PANEL, kind, minima, 2, ROWS_OF_PANEL)                                               \
    DEFINE_TILE(NAME##_panel_of_last, PANEL, kind, minima, 1, ROWS_OF_PANEL)                                       \
    static void NAME##_decode(const lanes_t *weights, const numbers_t *numbers, const uint8_t *codes, int64_t steps, \
                              uint8_t *panel) {                                                                   \
        decode_steps(kind, numbers, codes, steps, panel);                                                         \
    }                                                                                                             \
    static const tiles_t NAME = {kind, NAME##_1, NAME##_4, NAME##_4_of_last, NAME##_8, NAME##_of_block,           \
                                 NAME##_panel, NAME##_panel_of_last, NAME##_decode};

/* Decodes steps of a block into a panel. */
INLINE void decode_steps(const int kind, const numbers_t *numbers, const uint8_t *codes, int64_t steps, uint8_t *panel) {
    const int source = source_of(kind);
    for (int64_t i = 0; i < steps; i++, codes += step_bytes(source)) {
        __m512i out[PAIRS];
        load_step(source, kind, codes, numbers, out);
        for (int pair = 0; pair < PAIRS; pair++, panel += 64) _mm512_storeu_si512(panel, out[pair]);
    }
}

DEFINE_TILES(int8, INT8, 0)
DEFINE_TILES(int8_with_minimum, INT8, 1)
DEFINE_TILES(four_bits, INT4, 0)
DEFINE_TILES(four_bits_with_minimum, INT4, 1)
DEFINE_TILES(float8, E4M3, 0)

static const tiles_t *tiles_of(int kind, int minima) {
    if (kind == INT8) return minima ? &int8_with_minimum : &int8;
    if (kind == E4M3) return &float8;
    return minima ? &four_bits_with_minimum : &four_bits;
}

/* Blocks [block, last) with rows of x that are multiplied while decoding. */
static void few_rows(const tiles_t *tiles, const lanes_t *weights, const numbers_t *numbers, const rows_t *rows,
                     int64_t block, int64_t last, ahead_t *meanwhile) {
    const int64_t stride = weights->k_size / STEP_COLUMNS * step_bytes(source_of(tiles->kind));
    place_t place = {0, block, 0, weights->k_size / weights->group, stride, weights->codes + block * stride};
    tile_t *of_pair = rows->rows == 1 ? tiles->one_row : rows->rows <= 4 ? tiles->four_rows : tiles->eight_rows;
    for (; rows->rows <= ROWS_OF_TILE && place.block + 2 <= last; place.block += 2, place.steps += 2 * stride)
        of_pair(&place, weights, numbers, rows, meanwhile);
    tile_t *of_one = rows->rows <= 4 ? tiles->four_rows_of_last : tiles->rows_of_block;
    for (; place.block < last; place.block++, place.steps += stride) of_one(&place, weights, numbers, rows, meanwhile);
}

/* Blocks [first, last) with all rows of x. Meanwhile codes of the next ones, before `end`, are asked for. */
static void many_rows(const tiles_t *tiles, const lanes_t *weights, const numbers_t *numbers, const rows_t *rows,
                      int64_t first, int64_t last, int64_t end, uint8_t *panel) {
    const int64_t group = weights->group, groups = weights->k_size / group, steps = group / STEP_COLUMNS;
    const int64_t most = group < PANEL_COLUMNS ? PANEL_COLUMNS / group : 1, of_step = step_bytes(source_of(tiles->kind));
    const uint8_t *codes = weights->codes + first * groups * steps * of_step;
    const int64_t bytes = groups * steps * of_step, next = last + PANEL_BLOCKS < end ? last + PANEL_BLOCKS : end;
    const char *of_next = (const char *)codes + (last - first) * bytes;
    ahead_t ahead = {.line = of_next, .end = of_next + (next - last) * bytes};
    for (int64_t from = 0; from < groups; from += most) {
        place_t place = {.from = from, .to = from + most < groups ? from + most : groups};
        const int64_t of_block = (place.to - from) * steps;
        place.stride = of_block * step_bytes(PANEL);
        for (int64_t b = 0; b < last - first; b++)
            tiles->decode(weights, numbers, codes + b * bytes + from * steps * of_step, of_block, panel + b * place.stride);
        for (; place.row < rows->rows; place.row += ROWS_OF_PANEL) {
            place.steps = panel;
            for (place.block = first; place.block + 2 <= last; place.block += 2, place.steps += 2 * place.stride)
                tiles->panel(&place, weights, numbers, rows, &ahead);
            if (place.block < last) tiles->panel_of_last(&place, weights, numbers, rows, &ahead);
        }
    }
}

/* Sums over each group of the columns of a row. */
static void sum_groups(const bf16 *x, int64_t k_size, int64_t group, float *sums) {
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    const int64_t groups = k_size / group, width = group < BLOCK ? group : BLOCK;
    const __mmask32 mask = (__mmask32)((1ull << width) - 1);
    for (int64_t first = 0; first < groups; first += TILE) {
        vf lanes[TILE] = {{0}};
        const int64_t count = groups - first < TILE ? groups - first : TILE;
        for (int64_t g = 0; g < count; g++)
            for (int64_t k = (first + g) * group, end = k + group; k < end; k += width)
                lanes[g] = (vf)_mm512_dpbf16_ps((__m512)lanes[g], (__m512bh)_mm512_maskz_loadu_epi16(mask, x + k),
                                                (__m512bh)ones);
        _mm512_mask_storeu_ps(sums + first, (__mmask16)((1u << count) - 1), (__m512)sum_lanes(lanes));
    }
}

INLINE int64_t panel_bytes(const lanes_t *weights) {
    const int64_t columns = weights->group > PANEL_COLUMNS ? weights->group : PANEL_COLUMNS;
    return PANEL_BLOCKS * VL * (int64_t)sizeof(bf16) * (columns < weights->k_size ? columns : weights->k_size);
}

/* Blocks [from, to) of 16 outputs. Returns whether there was memory for a panel, and for sums of x. */
static int64_t multiply_blocks(int kind, const lanes_t *weights, const rows_t *all, int64_t from, int64_t to,
                               ahead_t *meanwhile) {
    const int64_t groups = weights->k_size / weights->group, most = all->rows < MOST_ROWS ? all->rows : MOST_ROWS;
    const int minima = weights->minimum != 0;
    uint8_t *panel = panel_of_thread(panel_bytes(weights) + most * groups * (int64_t)sizeof(float));
    if (!panel) return 0;
    float *sums = (float *)(panel + panel_bytes(weights));
    const numbers_t numbers = numbers_of(kind, minima);
    const tiles_t *tiles = tiles_of(kind, minima);
    for (int64_t row = 0; row < all->rows; row += most) {
        rows_t rows = *all;
        rows.x += row * weights->k_size, rows.out += row * all->n_size, rows.sums = sums;
        if (rows.rounded) rows.rounded += row * all->n_size;
        rows.rows = all->rows - row < most ? all->rows - row : most;
        for (int64_t m = 0; (kind == INT8 || minima) && m < rows.rows; m++)
            sum_groups(rows.x + m * weights->k_size, weights->k_size, weights->group, sums + m * groups);
        if (rows.rows <= FEW_ROWS) few_rows(tiles, weights, &numbers, &rows, from, to, meanwhile);
        for (int64_t block = from; rows.rows > FEW_ROWS && block < to; block += PANEL_BLOCKS)
            many_rows(tiles, weights, &numbers, &rows, block, block + PANEL_BLOCKS < to ? block + PANEL_BLOCKS : to, to,
                      panel);
    }
    return 1;
}
