#include "cpu/column_sums/rows.h"
#include "cpu/dispatch/dtypes.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void column_sums(const ColumnSums& args, RowRange cols) {
  with_type(args.input.dtype, [&](auto tag) { add_rows<decltype(tag)>(args, cols); });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
