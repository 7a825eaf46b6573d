#define FUSEDOPS_CPU_ISA avx512
#define FUSEDOPS_CPU_ISA_NAME "avx512"
#include "fusedops/cpu/table.h"
