#define FUSEDOPS_CPU_ISA avx2
#include "fusedops/cpu/table.h"
