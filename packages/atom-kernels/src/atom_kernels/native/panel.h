/* Memory in which a thread decodes weights. */
#pragma once
#include <stdint.h>
#include <stdlib.h>

/* A thread's panel. It grows with the longest rows and is kept: mapping it anew at each call would cost more than a call. */
static void *panel_of_thread(int64_t bytes) {
    static __thread void *panel;
    static __thread int64_t held;
    if (bytes > held) {
        free(panel);
        panel = aligned_alloc(64, (bytes + 63) / 64 * 64);
        held = panel ? bytes : 0;
    }
    return panel;
}
