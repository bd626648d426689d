/* The eight tile registers of AMX, each 16 rows of 64 bytes; in plain C where the CPU has none, for tests: as slow as it is
 * there. A product of tiles adds to each float32 the products of pairs of bfloat16, those at even places and those at odd
 * ones each in their order (Intel's manual, TDPBF16PS). */
#pragma once
#include "vector.h"

#define TILE_ROWS 16
#define TILE_BYTES 64

/* By number; constants, since instructions name them. */
#define SUMS_00 0
#define SUMS_01 1
#define SUMS_10 2
#define SUMS_11 3
#define LEFT_0 4
#define LEFT_1 5
#define RIGHT_0 6
#define RIGHT_1 7

/* As the instruction that loads it reads it. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes_t;

/* Left tiles of so many rows, and sums of as many. */
INLINE tile_shapes_t tile_shapes(int rows_0, int rows_1) {
    tile_shapes_t shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = TILE_BYTES, shapes.rows[i] = TILE_ROWS;
    shapes.rows[SUMS_00] = shapes.rows[SUMS_01] = shapes.rows[LEFT_0] = rows_0;
    shapes.rows[SUMS_10] = shapes.rows[SUMS_11] = shapes.rows[LEFT_1] = rows_1;
    return shapes;
}

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>

/* Whether the system lets this process use tiles, which it must ask for (ARCH_REQ_XCOMP_PERM, for XTILEDATA). */
INLINE int may_use_tiles(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

/* GCC's intrinsics do not say what memory they read: all that was written must be there. */
#define IS_READ(pointer) __asm__ volatile("" ::"r"(pointer) : "memory")
#define SHAPE_TILES(shapes) (__extension__({ IS_READ(shapes); _tile_loadconfig(shapes); }))
#define RELEASE_TILES() _tile_release()
#define ZERO_TILE(t) _tile_zero(t)
#define LOAD_TILE(t, from, stride) (__extension__({ IS_READ(from); _tile_loadd(t, from, stride); }))
#define STORE_TILE(t, to, stride) _tile_stored(t, to, stride)
#define ADD_PRODUCT(sums, left, right) _tile_dpbf16ps(sums, left, right)
#else
static _Thread_local struct {
    tile_shapes_t shapes;
    char tiles[8][TILE_ROWS][TILE_BYTES];
} imitated;

INLINE int may_use_tiles(void) { return 0; }

static void copy_rows(int t, char *to, int64_t to_stride, const char *from, int64_t from_stride) {
    for (int row = 0; row < imitated.shapes.rows[t]; row++) memcpy(to + row * to_stride, from + row * from_stride, TILE_BYTES);
}

static void add_product(int sums, int left, int right) {
    for (int row = 0; row < imitated.shapes.rows[sums]; row++)
        for (int column = 0; column < 16; column++) {
            const bf16 *a = (const bf16 *)imitated.tiles[left][row];
            float added[2] = {0, 0}, *sum = (float *)imitated.tiles[sums][row] + column;
            for (int pair = 0; pair < 16; pair++) {
                const bf16 *b = (const bf16 *)imitated.tiles[right][pair] + 2 * column;
                for (int i = 0; i < 2; i++) added[i] += bf16_to_float(a[2 * pair + i]) * bf16_to_float(b[i]);
            }
            *sum += added[0] + added[1];
        }
}

#define SHAPE_TILES(wanted) (imitated.shapes = *(wanted))
#define RELEASE_TILES()
#define ZERO_TILE(t) memset(imitated.tiles[t], 0, sizeof imitated.tiles[t])
#define LOAD_TILE(t, from, stride) copy_rows(t, imitated.tiles[t][0], TILE_BYTES, (const char *)(from), stride)
#define STORE_TILE(t, to, stride) copy_rows(t, (char *)(to), stride, imitated.tiles[t][0], TILE_BYTES)
#define ADD_PRODUCT(sums, left, right) add_product(sums, left, right)
#endif
