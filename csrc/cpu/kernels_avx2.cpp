#define FUSEDOPS_CPU_ISA avx2
#define FUSEDOPS_CPU_ISA_NAME "avx2"
#include "fusedops/cpu/table.h"
