"""fusedops.nn: replacements for torch.nn's modules, and attention's softmax as a module."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from oracle import same_bits
from torch import nn

import fusedops
from fusedops import reference

SCORES = (2, 3, 8, 8)

MODULES = {
    "Softmax": lambda: fusedops.nn.Softmax(-1),
    "LogSoftmax": lambda: fusedops.nn.LogSoftmax(-1),
    "MaskedSoftmax": lambda: fusedops.nn.MaskedSoftmax(0.125, causal=True),
    "LayerNorm": lambda: fusedops.nn.LayerNorm(8),
    "RMSNorm": lambda: fusedops.nn.RMSNorm(8, variant="llama"),
}
TORCH_MODULES = {"Softmax": nn.Softmax, "LogSoftmax": nn.LogSoftmax}


@pytest.mark.parametrize("name", TORCH_MODULES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_module_gives_what_torchs_gives_in_float64(name, dim):
    x = torch.randn(4, 5, 6)
    ours, theirs = getattr(fusedops.nn, name)(dim=dim), TORCH_MODULES[name](dim=dim)
    torch.testing.assert_close(ours(x).double(), theirs(x.double()), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", TORCH_MODULES)
def test_a_module_is_an_instance_of_torchs_and_prints_the_same(name):
    ours, theirs = getattr(fusedops.nn, name)(dim=1), TORCH_MODULES[name](dim=1)
    assert repr(ours) == repr(theirs)
    assert isinstance(ours, TORCH_MODULES[name])


@pytest.mark.parametrize("name", TORCH_MODULES)
def test_without_a_dimension_torch_guesses_it_and_warns(name):
    x = torch.randn(4, 5)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        result = getattr(fusedops.nn, name)()(x)
    torch.testing.assert_close(result, TORCH_MODULES[name](dim=1)(x))


MASK, START = torch.rand(2, 1, 1, 8) > 0.3, torch.tensor([0, 3])[:, None, None]
#: Settings of the module, and what it is called with beside the scores.
MASKED = [
    ({"scale": 0.125, "causal": True}, {"mask": MASK, "bias": torch.randn(1, 3, 8, 8)}),
    (
        {"causal": "bottom_right", "window": 3},
        {"start": START, "end": torch.tensor([[8], [4], [6]])},
    ),
    ({"mask_value": -1e4}, {"mask": torch.zeros(8, dtype=torch.bool)}),
    ({"masked_rows": "zero"}, {"mask": torch.zeros(8, dtype=torch.bool)}),
    ({"sinks": 0.5}, {}),
    ({"sinks": 0.5}, {"sinks": torch.randn(3, 1)}),
    ({"causal": True, "softcap": 1.5}, {}),
]


@pytest.mark.parametrize("settings, given", MASKED)
def test_a_masked_softmax_is_the_function_with_all_settings(settings, given):
    x = torch.randn(SCORES)
    result = fusedops.nn.MaskedSoftmax(**settings)(x, **given)
    expected = fusedops.masked_softmax(x, **settings | given)
    assert same_bits(result.nan_to_num(7), expected.nan_to_num(7))


def test_a_window_without_causality_is_refused_at_once():
    with pytest.raises(ValueError, match="window is 3, a number of keys"):
        fusedops.nn.MaskedSoftmax(window=3)


def test_dropout_happens_in_training_alone_and_follows_manual_seed():
    x = torch.randn(SCORES)
    module = fusedops.nn.MaskedSoftmax(p=0.5)
    exact = reference.softmax(x, -1)
    torch.testing.assert_close(module.eval()(x).double(), exact, atol=1e-6, rtol=1e-6)

    module.train()
    torch.manual_seed(3)
    first, second = module(x), module(x)
    torch.manual_seed(3)
    assert module(x).equal(first)
    assert not second.equal(first)
    kept = first != 0
    torch.testing.assert_close(first.double(), exact * kept * 2, atol=1e-6, rtol=1e-6)


def test_without_dropout_no_random_number_is_drawn():
    before = torch.get_rng_state()
    fusedops.nn.MaskedSoftmax(p=0.0).train()(torch.ones(4))
    assert before.equal(torch.get_rng_state())


@pytest.mark.parametrize("name", MODULES)
def test_copies_and_pickles_compute_the_same(name):
    module, x = MODULES[name](), torch.randn(SCORES)
    for theirs in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(theirs) == repr(module)
        assert theirs(x).equal(module(x))


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "MaskedSoftmax"])
def test_the_state_dict_of_a_softmax_is_empty(name):
    assert not MODULES[name]().state_dict()
    nn.Sequential(MODULES[name]()).load_state_dict({})


def test_extra_repr_names_every_argument():
    module = fusedops.nn.MaskedSoftmax(
        0.125, causal="bottom_right", p=0.1, masked_rows="zero", window=4, sinks=0.0, softcap=50.0
    )
    assert repr(module) == (
        "MaskedSoftmax(scale=0.125, causal='bottom_right', mask_value=-inf, p=0.1, "
        "masked_rows='zero', window=4, sinks=0.0, softcap=50.0)"
    )


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
def test_a_p_that_is_no_probability_is_refused_at_once(p):
    with pytest.raises(ValueError, match=r"wanted a probability in \[0, 1\]"):
        fusedops.nn.MaskedSoftmax(p=p)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_compiles_into_one_graph_and_exports(name):
    module, x = MODULES[name]().eval(), torch.randn(SCORES)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(x), module(x))


def test_dropout_compiles_into_one_graph_with_its_gradient():
    module = fusedops.nn.MaskedSoftmax(p=0.5, causal=True)
    x = torch.randn(SCORES, requires_grad=True)
    output = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    (grad,) = torch.autograd.grad(output.square().sum(), x)
    kept = output.detach() != 0
    y = reference.masked_softmax(x, diagonal=0) * kept * 2
    (exact,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close(grad.double(), exact.double(), atol=1e-5, rtol=1e-5)


# --- norms --------------------------------------------------------------------------------------

NORMS = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [6, (5, 6)])
def test_norms_take_torchs_state_dict_and_give_its_values(name, affine, shape):
    ours = getattr(fusedops.nn, name)(shape, elementwise_affine=affine)
    theirs = NORMS[name](shape, elementwise_affine=affine)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 5, 6)
    torch.testing.assert_close(ours(x).double(), theirs.double()(x.double()), atol=1e-5, rtol=1e-5)
    assert isinstance(ours, NORMS[name])


@pytest.mark.parametrize("shape", [6, (5, 6)])
def test_the_annotated_norm_begins_at_the_identity_and_has_torchs_parameters(shape):
    norm = fusedops.nn.StdNorm(shape)
    x = torch.randn(4, 5, 6)
    assert norm.state_dict().keys() == nn.LayerNorm(shape).state_dict().keys() and norm.eps == 1e-6
    assert same_bits(norm(x), fusedops.std_norm(x, norm.normalized_shape))
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    exact = reference.std_norm(x, norm.normalized_shape, norm.weight, norm.bias)
    torch.testing.assert_close(norm(x).double(), exact, atol=1e-5, rtol=1e-5)


def test_the_annotated_norm_is_no_layer_norm():
    """A weight conversion that took it for one would compute another function."""
    assert not isinstance(fusedops.nn.StdNorm(8), nn.LayerNorm)


def test_the_annotated_norm_with_fewer_parameters():
    norm = fusedops.nn.StdNorm(8, bias=False, dtype=torch.float64)
    assert list(norm.state_dict()) == ["weight"] and norm.weight.dtype == torch.float64
    assert repr(norm) == "StdNorm((8,), eps=1e-06, elementwise_affine=True)"
    plain = fusedops.nn.StdNorm((2, 4), elementwise_affine=False)
    assert not plain.state_dict() and plain.weight is None and plain.bias is None
    x = torch.randn(3, 2, 4)
    assert same_bits(plain(x), fusedops.std_norm(x, (2, 4)))


def test_layer_norm_without_bias_and_in_another_dtype():
    norm = fusedops.nn.LayerNorm(8, eps=1e-3, bias=False, dtype=torch.bfloat16)
    assert list(norm.state_dict()) == ["weight"] and norm(torch.randn(2, 8)).dtype == torch.float32
    assert repr(norm) == repr(nn.LayerNorm(8, eps=1e-3, bias=False))


def test_the_weight_of_gemmas_norm_begins_at_zero_and_gives_what_torchs_gives():
    x = torch.randn(4, 8)
    gemma, plain = fusedops.nn.RMSNorm(8, variant="gemma"), nn.RMSNorm(8)
    assert gemma.weight.abs().max() == 0
    torch.testing.assert_close(gemma(x), plain(x))
    assert "variant='gemma'" in repr(gemma)


def test_a_norm_of_another_variant_is_refused():
    with pytest.raises(
        ValueError, match="variant is 'lama', wanted 'torch', 'llama', 't5' or 'gemma'"
    ):
        fusedops.nn.RMSNorm(8, variant="lama")
