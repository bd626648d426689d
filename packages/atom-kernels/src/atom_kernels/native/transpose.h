/* Squares of VL x VL words of 32 bits, in registers. */
#pragma once
#include "vector.h"

/* Where the lanes of two rows go when blocks of `half` words off the diagonal change places; lanes of the second row
 * count from VL. Constants: compilers build such vectors lane by lane otherwise. */
#define LOW_LANE(lane, half) ((lane) & (half) ? VL + ((lane) ^ (half)) : (lane))
#define HIGH_LANE(lane, half) ((lane) & (half) ? VL + (lane) : (lane) ^ (half))
#define FOUR(f, lane, half) f(lane, half), f(lane + 1, half), f(lane + 2, half), f(lane + 3, half)
#if VL == 16
#define LANES(f, half) {FOUR(f, 0, half), FOUR(f, 4, half), FOUR(f, 8, half), FOUR(f, 12, half)}
#elif VL == 8
#define LANES(f, half) {FOUR(f, 0, half), FOUR(f, 4, half)}
#else
#define LANES(f, half) {FOUR(f, 0, half)}
#endif
static const uint32_t low_lanes[4][VL] = {LANES(LOW_LANE, 1), LANES(LOW_LANE, 2), LANES(LOW_LANE, 4),
                                          LANES(LOW_LANE, 8)};
static const uint32_t high_lanes[4][VL] = {LANES(HIGH_LANE, 1), LANES(HIGH_LANE, 2), LANES(HIGH_LANE, 4),
                                           LANES(HIGH_LANE, 8)};

/* Rows become columns: `row[i]` has word i of all rows. */
INLINE void transpose(vu row[VL]) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
    for (int stage = 0; 1 << stage < VL; stage++) {
        vu low = *(const vu *)low_lanes[stage], high = *(const vu *)high_lanes[stage];
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++)
            if (!(i & 1 << stage)) {
                vu a = row[i], b = row[i | 1 << stage];
                row[i] = __builtin_shuffle(a, b, low);
                row[i | 1 << stage] = __builtin_shuffle(a, b, high);
            }
    }
#else
    uint32_t words[VL][VL];
    memcpy(words, row, sizeof words);
    for (int i = 0; i < VL; i++)
        for (int j = 0; j < VL; j++) row[j][i] = words[i][j];
#endif
}
