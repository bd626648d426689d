/* Nothing of its own: compiling and loading it shows that native kernels can be had on this machine. */
#include "vector.h"
