/* Paged attention over bfloat16 caches in AMX tiles: heads of multiples of 32 channels. */
#define ELEMENT_BFLOAT16
#define IN_TILES
#include "attention.h"
