/* The scores of few rows, such as those of a decode, in AMX tiles: keys are left tiles, as they lie in the cache, and what is
 * found is turned. Its sums are those of `score_rows`: the same pairs in the same order. */
#pragma once

#define FEW_ROWS 16
/* Tiles with a column for each row. */
#define FOUND SUMS_10
#define QUERIES SUMS_11
#define KEYS LEFT_1

/* 16 keys: a row, and elements from row to row. */
typedef struct {
    const bf16 *at;
    int64_t stride;
} Rows;

/* Columns of such tiles. */
INLINE int columns_for(int rows) { return rows <= 4 ? 4 : rows <= 8 ? 8 : 16; }

static void shape_for_few(int columns) {
    if (shaped == -columns) return;
    tile_shapes_t shapes = tile_shapes(TILE_ROWS, TILE_ROWS);
    shapes.row_bytes[FOUND] = shapes.row_bytes[QUERIES] = columns * 4;
    SHAPE_TILES(&shapes);
    shaped = -columns;
}

/* queries[rows][depth] as right tiles: turned[depth][columns]. */
static void turn_queries(const word *queries, int rows, int depth, int columns, word *turned) {
    memset(turned, 0, (size_t)depth * columns * 4);
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < depth; d++) turned[d * columns + i] = queries[i * depth + d];
}

/* found[16 keys][columns] = keys . queries. Those in `ahead` are wanted soon. */
INLINE void score_keys(const Rows *keys, const stored *const *ahead, int head_dim, const word *turned, int columns,
                       float *found) {
    ZERO_TILE(FOUND);
    for (int d = 0; d < head_dim; d += DEPTH) {
        LOAD_TILE(KEYS, keys->at + d, keys->stride * sizeof(bf16));
        LOAD_TILE(QUERIES, turned + d / PAIRS * columns, columns * 4);
        ADD_PRODUCT(FOUND, KEYS, QUERIES);
        if (d * sizeof(stored) % 64 == 0) prefetch_lines(ahead, TILE_ROWS, d);
    }
    STORE_TILE(FOUND, found, columns * 4);
}

INLINE vi lane_iota(void) {
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const vi *)lanes;
}

/* Row `i` of found[VL keys][columns]: registers' lanes of that row move together, then the lanes of two registers. */
INLINE vf turned_row(const float *found, const int columns, int i) {
    vf part[8];
    int lanes = 2 * VL / columns; /* that two registers have of a row */
#pragma GCC unroll 8
    for (int k = 0; k < columns / 2; k++)
        part[k] = __builtin_shuffle(vf_load(found + 2 * k * VL), vf_load(found + (2 * k + 1) * VL), lane_iota() * columns + i);
#pragma GCC unroll 3
    for (int count = columns / 4; count > 0; count /= 2, lanes *= 2)
#pragma GCC unroll 4
        for (int k = 0; k < count; k++) {
            vi lane = lane_iota();
            part[k] = __builtin_shuffle(part[2 * k], part[2 * k + 1], lane + (vi)(lane >= lanes) * (lanes - VL));
        }
    return part[0];
}

/* scores[rows][TILE], keys [from, to) of them, multiples of 16, = found[keys][columns]. */
INLINE void turn_scores(const float *found, const int columns, int from, int to, int rows, float *scores) {
    for (int key = from; key < to; key += VL)
        for (int i = 0; i < rows; i++) {
#if VL == 16 && defined(__GNUC__) && !defined(__clang__)
            vf_store(scores + i * TILE + key, turned_row(found + key * columns, columns, i));
#else
            for (int t = key; t < key + VL; t++) scores[i * TILE + t] = found[t * columns + i];
#endif
        }
}

static void turn_found(const float *found, int from, int to, int rows, float *scores) {
    switch (columns_for(rows)) {
        case 4: turn_scores(found, 4, from, to, rows, scores); break;
        case 8: turn_scores(found, 8, from, to, rows, scores); break;
        default: turn_scores(found, 16, from, to, rows, scores);
    }
}
