"""fusedops.export.rewrite gives a new program with the same outputs, also after save and load."""

import io

import pytest
import torch
from torch import nn

import fusedops


class _Model(nn.Module):
    """Its last op is a layer_norm: the output's name in the signature must follow."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, input):
        return self.norm(self.linear(input).softmax(-1)), input.log_softmax(0)


def _ops(program):
    names = [str(node.target) for node in program.graph.nodes]
    return sorted(name for name in names if name.startswith("fusedops"))


OPS_OF_NESTED = ["fusedops.layer_norm.default", "fusedops.masked_softmax.default"]
OPS = ["fusedops.layer_norm.default", "fusedops.log_softmax.default", "fusedops.softmax.default"]


def test_a_rewritten_program_survives_save_and_load():
    model, x = _Model(), torch.randn(4, 8)
    program = fusedops.export.rewrite(torch.export.export(model, (x,)))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert _ops(program) == _ops(loaded) == OPS
    torch.testing.assert_close(loaded.module()(x), model(x), rtol=1e-5, atol=1e-5)


def test_the_original_program_is_left_as_it_is_and_shares_its_parameters():
    exported = torch.export.export(_Model(), (torch.randn(4, 8),))
    before = (str(exported.graph), str(exported.graph_signature))
    program = fusedops.export.rewrite(exported)
    assert (str(exported.graph), str(exported.graph_signature)) == before
    assert program.state_dict["norm.weight"] is exported.state_dict["norm.weight"]


@pytest.mark.parametrize("decompositions", [None, {}])
def test_a_decomposed_program_is_rewritten_by_the_same_rules(decompositions):
    model, x = _Model(), torch.randn(4, 8)
    exported = torch.export.export(model, (x,)).run_decompositions(decompositions)
    program = fusedops.export.rewrite(exported)
    assert _ops(program) == OPS
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-5)


class _Scale(nn.Module):
    def forward(self, x):
        return x * 0.125


class _Nested(nn.Module):
    """The scale is a factor of a masked softmax, unless its module has a signature to keep."""

    def __init__(self):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(8), _Scale()

    def forward(self, x, mask):
        return (self.scale(self.norm(x)) + mask).softmax(-1)


@pytest.mark.parametrize("preserved", [(), ("norm",), ("norm", "scale")])
@pytest.mark.parametrize("before", [False, True], ids=["", "unflattened before"])
def test_a_program_can_be_unflattened_into_modules_with_their_signatures(preserved, before):
    model, inputs = _Nested(), (torch.randn(4, 8), torch.randn(4, 8))
    exported = torch.export.export(model, inputs, preserve_module_call_signature=preserved)
    if before:
        torch.export.unflatten(exported)
    program = fusedops.export.rewrite(exported)
    assert _ops(program) == OPS_OF_NESTED
    modules = torch.export.unflatten(program)
    torch.testing.assert_close(modules(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    for path in preserved:
        result, expected = (m.get_submodule(path)(inputs[0]) for m in (modules, model))
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


class _Regions(nn.Module):
    """torch.export puts each region into a submodule of its own."""

    def forward(self, x):
        with torch.no_grad():
            weights = x.softmax(-1)
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.layer_norm(x @ weights, (8,))


def test_regions_of_no_grad_and_autocast_are_rewritten_inside():
    model, x = _Regions(), torch.randn(8, 8)
    program = fusedops.export.rewrite(torch.export.export(model, (x,)))
    bodies = [body for body in program.graph_module.modules() if hasattr(body, "graph")]
    text = "".join(str(body.graph) for body in bodies)
    assert text.count("fusedops.softmax.default") == text.count("fusedops.layer_norm.default") == 1
    assert program.module()(x).dtype == model(x).dtype == torch.bfloat16
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-2, atol=1e-2)
