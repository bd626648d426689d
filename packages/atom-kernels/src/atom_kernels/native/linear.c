/* Dense linears, for `atom_kernels.linear`. */
#include "linear.h"
