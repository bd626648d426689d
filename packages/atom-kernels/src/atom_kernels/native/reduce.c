/* Sums over ranks that have mapped one piece of memory: every rank adds up what all have put there, in their order.
 *
 * The memory begins with a flag of each rank, a cache line apart: how many sums it has come to. Behind them lie two
 * places for each rank, which calls use in turn: a rank comes to a call once it has read all of the one before, so that
 * nobody still reads what was put there two calls ago. */
#include "vector.h"
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define LINE 64
/* About as long as a sum of few rows; then the other rank computes still, or its core is another one's just now. */
#define MOST_PAUSES 4000
#define MOST_YIELDS 400
#define NAP_NS 50000
#define PARALLEL_ELEMENTS 32768

INLINE void pause_core(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Whether the flag came to `call` within `limit` seconds. */
static int has_come(_Atomic uint64_t *flag, uint64_t call, double limit) {
    for (int i = 0; i < MOST_PAUSES; i++) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= call) return 1;
        pause_core();
    }
    for (int i = 0; i < MOST_YIELDS; i++) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= call) return 1;
        sched_yield();
    }
    const struct timespec nap = {0, NAP_NS};
    for (double end = seconds() + limit; seconds() < end;) {
        if (atomic_load_explicit(flag, memory_order_acquire) >= call) return 1;
        nanosleep(&nap, NULL);
    }
    return 0;
}

/* The rank that did not come within `limit` seconds; -1 where x holds the sum. */
#define DEFINE_SUM(T)                                                                                                  \
    int64_t sum_over_ranks_##T(                                                                                        \
        uint8_t *memory, int64_t rank, int64_t size, int64_t place_bytes, T *x, int64_t count, double limit) {         \
        _Atomic uint64_t *own = (_Atomic uint64_t *)(memory + rank * LINE);                                            \
        uint64_t call = atomic_load_explicit(own, memory_order_relaxed) + 1;                                           \
        uint8_t *places = memory + size * LINE + (call & 1) * size * place_bytes;                                      \
        memcpy(places + rank * place_bytes, x, count * sizeof(T));                                                     \
        atomic_store_explicit(own, call, memory_order_release);                                                        \
        for (int64_t other = 0; other < size; other++)                                                                 \
            if (!has_come((_Atomic uint64_t *)(memory + other * LINE), call, limit)) return other;                     \
        _Pragma("omp parallel for schedule(static) if (count > PARALLEL_ELEMENTS)")                                    \
        for (int64_t start = 0; start < count; start += 1024) {                                                        \
            int64_t end = start + 1024 < count ? start + 1024 : count, i = start;                                      \
            for (; i + VL <= end; i += VL) {                                                                           \
                vf total = vf_load_##T((const T *)places + i);                                                         \
                for (int64_t other = 1; other < size; other++)                                                         \
                    total += vf_load_##T((const T *)(places + other * place_bytes) + i);                               \
                vf_store_##T(x + i, total);                                                                            \
            }                                                                                                          \
            for (; i < end; i++) {                                                                                     \
                float total = T##_to_float(((const T *)places)[i]);                                                    \
                for (int64_t other = 1; other < size; other++)                                                         \
                    total += T##_to_float(((const T *)(places + other * place_bytes))[i]);                             \
                x[i] = float_to_##T(total);                                                                            \
            }                                                                                                          \
        }                                                                                                              \
        return -1;                                                                                                     \
    }

DEFINE_SUM(bf16)
DEFINE_SUM(f32)
