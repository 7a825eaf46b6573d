#define FUSEDOPS_CPU_ISA avx512
#include "fusedops/cpu/table.h"
