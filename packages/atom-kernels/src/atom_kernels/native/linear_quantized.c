/* out[M,N] = x[M,K] . weight[N,K]^T + bias[N] with weights of eight or four bits and scales in float32; out in
 * bfloat16 too where it is asked for.
 *
 * For few rows of x, weights are multiplied in the registers that they are decoded into. For more, each thread decodes a
 * panel of weight rows, which stays in its caches, and multiplies it as `linear.h` does. Both add in the order of
 * `linear.h`: a row of the result has the bits that the decoded weights give, whatever the other rows and their number. */
#include "linear.h"
#include "low_rank.h"
#include "packed_codes.h"
#include "panel.h"

DEFINE_SHRINK(f32)
DEFINE_EXPAND(f32, f32)

#define T float
#define EXPAND_SHARE expand_share_f32_f32
#define NAME(x) x##_f32
#define VEC vf
#define STEP VL
#define LOAD(p) vf_load(p)
#define DOT(sum, a, b) ((sum) + (a) * (b))
#define STORE(p, v) vf_store(p, v)
#define PACK(block, i) (block)[i]
#define LINEAR(x) x##_f32
#define MOST_ROWS 2
static const int64_t max_few_rows_f32 = 4;
#include "packed_tile.h"
#include "packed_driver.h"
#undef T
#undef NAME
#undef EXPAND_SHARE
#undef VEC
#undef STEP
#undef LOAD
#undef DOT
#undef STORE
#undef PACK
#undef LINEAR
#undef MOST_ROWS
