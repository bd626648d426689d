/* Memory that a thread will read soon. While a thread computes, memory has little to do: it is asked for a line of that at
 * each step of a loop. More lines at once than a core can wait for would hold up the loop. */
#pragma once
#include "vector.h"

#define LINE 64

/* Pieces of memory of as many bytes, a stride from each other. */
typedef struct {
    const char *start;
    int64_t bytes, stride, pieces;
} run_t;

/* Lines from `line` to `end`, then the pieces that are left of runs. */
typedef struct {
    const char *line, *end;
    const run_t *run, *last;
    int64_t piece;
} ahead_t;

/* Adds a run to a list, once; returns how many it has. */
INLINE int64_t add_run(run_t *runs, int64_t count, run_t run) {
    for (int64_t i = 0; i < count; i++)
        if (runs[i].start == run.start) return count;
    runs[count] = run;
    return count + 1;
}

/* Asks for the next line. */
INLINE void ask_ahead(ahead_t *ahead) {
    if (ahead->line < ahead->end) {
        ask_for(ahead->line);
        ahead->line += LINE;
    } else if (ahead->run < ahead->last) {
        const run_t *run = ahead->run;
        ahead->line = run->start + ahead->piece * run->stride;
        ahead->end = ahead->line + run->bytes;
        if (++ahead->piece == run->pieces) ahead->piece = 0, ahead->run++;
    }
}
