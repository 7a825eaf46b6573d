"""PyTorch's own samples of the ops, on a GPU."""

import pytest
import torch
from test_ops_registration import OP_INFO
from torch.testing._internal.common_methods_invocations import op_db

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}


def doubled(value):
    return value.double() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    "info",
    [info for info in op_db if info.name in OP_INFO],
    ids=lambda info: f"{info.name} {info.variant_test_name}".strip(),
)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_pytorchs_own_samples(info, dtype):
    samples = [s for s in info.sample_inputs("cuda", dtype) if s.kwargs.get("eps", 0) >= 0]
    assert len(samples) > 3
    for sample in samples:
        actual = OP_INFO[info.name](sample)
        exact = sample.transform(doubled)
        expected = info.op(exact.input, *exact.args, **exact.kwargs)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)
