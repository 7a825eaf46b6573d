// Defines the operators: their names and schemas, which are the same for all devices.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(fusedops, m) {
#define OPERATOR(name, function, schema) m.def(#name schema);
#define OPERATOR_WITH_VARIANT(name, function, schema) \
  m.def(#name schema);                                \
  m.def("_" #name schema);
#include "ops/operators.def"
}
