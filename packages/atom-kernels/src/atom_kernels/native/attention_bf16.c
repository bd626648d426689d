/* Paged attention over bfloat16 caches. */
#define ELEMENT_BFLOAT16
#include "attention.h"
