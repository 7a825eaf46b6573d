"""group_norm with one group is a layer_norm over whole images; with more groups it stays."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_becomes

import fusedops

C = 6


@pytest.fixture
def inputs():
    shapes = (2, C, 4, 5), (C,), (C,)
    return [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in shapes]


FORMS = {
    "function": lambda x, w, b: F.group_norm(x, 1, w, b, 1e-6),
    "torch's": lambda x, w, b: torch.group_norm(x, 1, w, b),
    "without parameters": lambda x, w, b: F.group_norm(x, num_groups=1),
    "a sequence": lambda x, w, b: F.group_norm(x.flatten(2), 1, w, b),
    "no other dimension": lambda x, w, b: F.group_norm(x[..., 0, 0], 1, w, b),
}


@pytest.mark.parametrize("name", FORMS)
def test_one_group_is_a_layer_norm(rewrite, inputs, name):
    assert_becomes(rewrite, FORMS[name], inputs, {"layer_norm": 1})


def test_a_channels_last_image_stays_channels_last(rewrite_dynamo, inputs):
    x, *parameters = inputs
    x = x.detach().contiguous(memory_format=torch.channels_last)
    rewritten = rewrite_dynamo(FORMS["function"], x, *parameters)
    ours, eager = (f(x, *parameters) for f in (rewritten.call, FORMS["function"]))
    assert rewritten.replaced == {"layer_norm": 1} and ours.stride() == eager.stride()
    torch.testing.assert_close(ours, eager, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("entry", ["dynamo", "export", "symbolic_trace"])
def test_the_modules_parameters_are_used(entries, entry):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.GroupNorm(1, C).double()
            torch.nn.init.normal_(self.norm.weight)

        def forward(self, x):
            return self.norm(x)

    model, x = Model(), torch.randn(2, C, 4, 5, dtype=torch.float64)
    assert_becomes(entries[entry], model, [x], {"layer_norm": 1}, rtol=1e-11, atol=1e-13)


STAYS = {
    "groups": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        "normalises groups of channels, which no op does for more than one group",
    ),
    "instances": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        "normalises each channel of an image, which no op does",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_norms_of_images_stay_for_their_reasons(rewrite_dynamo, inputs, name):
    form, reason = STAYS[name]
    inputs = [tensor.detach() for tensor in inputs]
    assert_becomes(rewrite_dynamo, form, inputs, {}, [reason])


def test_expanded_parameters_count_as_traffic(rewrite_dynamo, inputs):
    """They are as long as an image, and are written and read for each call."""
    inputs = [tensor.detach() for tensor in inputs]
    with fusedops.config.patch(fuse="profitable"):
        plain, affine = (
            rewrite_dynamo(FORMS[name], *inputs).report.sites[0].figures
            for name in ("without parameters", "function")
        )
    assert plain.passes_ms == 0 < affine.passes_ms
