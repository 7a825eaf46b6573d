"""torch.compile(backend="fusedops") on a GPU replaces calls; the result is right, can be trained
and can be captured in a CUDA graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

REPLACED = {"layer_norm": 1, "softmax": 1}


@pytest.fixture(autouse=True)
def fresh_compiler():
    counters.clear()
    with fresh_cache():
        yield


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Softmax(-1)).cuda()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_model_is_replaced_and_computes_the_same(model, mode):
    compiled = torch.compile(model, backend="fusedops", mode=mode)
    with torch.no_grad():
        for _ in range(3):  # reduce-overhead records its graph at the second call
            x = torch.randn(32, 64, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert dict(counters["fusedops"]) == REPLACED


def test_training_gradients_are_eagers(model):
    model = model.double()
    x = torch.randn(32, 64, dtype=torch.float64, device="cuda", requires_grad=True)
    leaves = [x, *model.parameters()]
    compiled = torch.compile(model, backend="fusedops")
    ours = torch.autograd.grad(compiled(x).sin().sum(), leaves)
    eager = torch.autograd.grad(model(x).sin().sum(), leaves)
    torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-10)
    assert dict(counters["fusedops"]) == REPLACED


def test_autocast_gives_eagers_dtypes_and_values():
    def function(x):
        with torch.autocast("cuda", torch.bfloat16):
            return F.layer_norm((x @ x).softmax(-1), (64,))

    x = torch.randn(64, 64, device="cuda")
    actual, expected = torch.compile(function, backend="fusedops")(x), function(x)
    assert actual.dtype == expected.dtype
    # The results differ by bfloat16's rounding of x @ x, which is summed in different orders.
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    assert dict(counters["fusedops"]) == REPLACED


def test_dynamic_batches_compile_once(model):
    compiled = torch.compile(model, backend="fusedops", dynamic=True)
    with torch.no_grad():
        for rows in (3, 17, 1000):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_loss_over_logits_is_replaced_and_trains_as_eager():
    def step(x, weight, target):
        return F.cross_entropy((x @ weight.t()).float(), target)

    x, target = torch.randn(64, 32, device="cuda"), torch.randint(0, 3001, (64,), device="cuda")
    leaves = x.requires_grad_(), torch.randn(3001, 32, device="cuda", requires_grad=True)
    losses = [f(*leaves, target) for f in (torch.compile(step, backend="fusedops"), step)]
    ours, eager = (torch.autograd.grad(loss, leaves) for loss in losses)
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)
    assert dict(counters["fusedops"]) == {"cross_entropy": 1}
