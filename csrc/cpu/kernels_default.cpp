#define FUSEDOPS_CPU_ISA default_
#define FUSEDOPS_CPU_ISA_NAME "default"
#include "fusedops/cpu/table.h"
