"""The tests in tests/ops of the norms, also after a residual, with tensors on a GPU."""

import pytest
import torch
from test_add_norm import *  # noqa: F403
from test_norm import *  # noqa: F403


@pytest.fixture(autouse=True)
def on_gpu():
    before = torch.get_default_device()
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(before)
