"""The tests in tests/ops of the norms, also after a residual, with tensors on a GPU."""

import pytest
from test_add_norm import *  # noqa: F403
from test_norm import *  # noqa: F403

# A CPU kernel sums float32 rows in float64. On a GPU the sums are float32 as eager's are, and
# overflow above 3e38 / cols, their squares above 1e19 (docs/numerics.md).
del test_rows_whose_squares_overflow_are_right_where_eagers_are_not  # noqa: F821
del test_a_constant_row_of_large_numbers_is_zero_as_in_float64  # noqa: F821

pytestmark = pytest.mark.usefixtures("tensors_on_gpu")
