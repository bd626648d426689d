/* Attention of encoders in float32. */
#define ELEMENT_FLOAT32
#include "encoder.h"
