/* Attention of encoders in bfloat16. */
#define ELEMENT_BFLOAT16
#include "encoder.h"
