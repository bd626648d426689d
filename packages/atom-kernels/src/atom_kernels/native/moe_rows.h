/* Rows between the two products of experts: sorted by expert, in one piece of memory that the caller gives. */
#pragma once
#include "linear.h"

#define ALIGNMENT 64
/* Below this a second thread costs more than it gives. */
#define PARALLEL_PRODUCTS 65536

/* Bytes of all arrays between the products, see `moe_experts`. */
typedef struct {
    int64_t rows, hidden, active, starts, cursors, order, total;
} Workspace;

static Workspace plan_workspace(int64_t tokens, int64_t count, int64_t top_k, int64_t d_size, int64_t i_size,
                                int64_t item) {
    Workspace at;
    int64_t next = 0, pairs = tokens * top_k;
#define TAKE(field, bytes) at.field = next, next += ((bytes) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
    TAKE(rows, pairs * d_size * item);
    TAKE(hidden, pairs * 2 * i_size * item);
    TAKE(active, pairs * i_size * item);
    TAKE(starts, (count + 1) * 8);
    TAKE(cursors, count * 8);
    TAKE(order, pairs * 8);
#undef TAKE
    at.total = next + ALIGNMENT;
    return at;
}

int64_t moe_workspace_bytes(int64_t tokens, int64_t count, int64_t top_k, int64_t d_size, int64_t i_size,
                            int64_t item) {
    return plan_workspace(tokens, count, top_k, d_size, i_size, item).total;
}

/* Rows of weight that pass in one go, as in `linear`. */
INLINE int64_t panel_rows(int64_t k_size, int64_t item) {
    int64_t rows = PANEL_BYTES / (item * k_size) / TILE * TILE;
    return rows > PANEL_ROWS ? PANEL_ROWS : rows < TILE ? TILE : rows;
}

/* starts[e]: first sorted row of an expert; order[pair]: where the row of that pair lies, -1 if it has no expert. */
static void sort_rows(const int32_t *ids, int64_t pairs, int64_t count, int64_t *starts, int64_t *cursors,
                      int64_t *order) {
    memset(cursors, 0, count * sizeof(int64_t));
    for (int64_t p = 0; p < pairs; p++)
        if (ids[p] >= 0 && ids[p] < count) cursors[ids[p]]++;
    starts[0] = 0;
    for (int64_t e = 0; e < count; e++) {
        starts[e + 1] = starts[e] + cursors[e];
        cursors[e] = starts[e];
    }
    for (int64_t p = 0; p < pairs; p++) order[p] = ids[p] >= 0 && ids[p] < count ? cursors[ids[p]]++ : -1;
}
