#include "cpu/dispatch/dtypes.h"
#include "cpu/dropout/rows.h"

namespace fusedops::FUSEDOPS_CPU_ISA {

void dropout(const DropoutForward& args, RowRange rows, RowRange cols, bool streaming) {
  with_type(args.input.dtype, [&](auto tag) {
    with_store(streaming, args.output, [&](StoreMode mode) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        drop_row<decltype(tag)>(args, row, cols, mode);
      }
    });
  });
}

}  // namespace fusedops::FUSEDOPS_CPU_ISA
