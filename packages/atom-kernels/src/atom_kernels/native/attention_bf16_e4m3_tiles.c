/* Paged attention in bfloat16 over caches in e4m3 in AMX tiles: heads of multiples of 32 channels. */
#define ELEMENT_BFLOAT16
#define CACHE_E4M3
#define IN_TILES
#include "attention.h"
