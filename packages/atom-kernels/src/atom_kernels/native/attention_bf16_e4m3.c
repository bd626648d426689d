/* Paged attention in bfloat16 over caches in e4m3. */
#define ELEMENT_BFLOAT16
#define CACHE_E4M3
#include "attention.h"
