/* Memory that a thread will read soon. While a thread computes, the memory has little to do: it asks for some lines of the
 * next thing then. */
#pragma once
#include "vector.h"

#define LINE 64

typedef struct {
    const char *start;
    int64_t bytes;
} run_t;

/* Runs of memory, and how many lines of them `ask_ahead` asks for at a time. */
typedef struct {
    const run_t *run, *end;
    int64_t at, lines;
} ahead_t;

INLINE void ask_ahead(ahead_t *ahead) {
    for (int64_t left = ahead->lines; left > 0 && ahead->run < ahead->end;) {
        const char *next = ahead->run->start + ahead->at;
        const int64_t of_run = (ahead->run->bytes - ahead->at + LINE - 1) / LINE, count = of_run < left ? of_run : left;
        for (int64_t line = 0; line < count; line++) __builtin_prefetch(next + line * LINE, 0, 2);
        left -= count, ahead->at += count * LINE;
        if (count == of_run) ahead->at = 0, ahead->run++;
    }
}

/* Has all runs asked for in so many times; not at all in none. */
INLINE ahead_t in_times(const run_t *runs, int64_t count, int64_t times) {
    int64_t lines = 0;
    for (int64_t i = 0; i < count; i++) lines += (runs[i].bytes + LINE - 1) / LINE;
    return (ahead_t){runs, runs + count, 0, times ? (lines + times - 1) / times : 0};
}
