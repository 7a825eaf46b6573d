#define FUSEDOPS_CPU_ISA default_
#include "fusedops/cpu/table.h"
