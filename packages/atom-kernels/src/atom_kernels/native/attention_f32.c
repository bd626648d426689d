/* Paged attention over float32 caches. */
#define ELEMENT_FLOAT32
#include "attention.h"
