/* Paged attention in float32 over caches in e4m3. */
#define ELEMENT_FLOAT32
#define CACHE_E4M3
#include "attention.h"
