"""What all tests of operators share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Dynamo compiles a function of a test eight times, in which parameters count together."""
    yield
    torch._dynamo.reset()
