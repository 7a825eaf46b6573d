"""masked_softmax takes in scales, masks and biases in front of a softmax, in all their forms."""

import pytest
import torch
from agreement import assert_agrees, assert_becomes, assert_one_graph, rewritten_alike
from masked_softmax_forms import FORMS, INF, LENGTH, arguments_of, draw

every_form = pytest.mark.parametrize("form, arguments", FORMS.values(), ids=FORMS)


@every_form
def test_every_form_is_one_op_with_eagers_values_and_gradients(rewrite, form, arguments):
    inputs = draw(requires_grad=True)
    assert_becomes(rewrite, form, inputs, {"masked_softmax": 1}, rtol=1e-10, atol=1e-14)


def _call(rewritten):
    """The one call, but for the mask value that is always given."""
    (call,) = rewritten.calls
    assert rewritten.unused == []
    return call.replace(", mask_value=-inf", "")


@every_form
def test_every_form_is_the_one_call_that_it_should_be(rewrite_dynamo, form, arguments):
    """And nothing that the operator computes is computed beside it."""
    rewritten = rewrite_dynamo(form, *draw())
    assert _call(rewritten) == f"masked_softmax({arguments})"
    dropped = form is FORMS["dropped out in inference"][0]
    assert rewritten.results == ["dropout(masked_softmax, 0.5)" if dropped else "masked_softmax"]


@every_form
def test_every_form_is_found_and_compiled_once_for_all_batch_sizes(rewrite_dynamo, form, arguments):
    rewritten = rewrite_dynamo(form, *draw(4), dynamic=True)
    assert_one_graph(rewritten, form, [draw(batch) for batch in (2, 5, LENGTH)])
    assert rewritten.replaced == {"masked_softmax": 1}


@pytest.mark.parametrize("name", ["with bias and mask", "filled causally and by a mask"])
def test_the_backward_pass_is_our_op_too(backward_ops, name):
    ops = backward_ops(FORMS[name][0], *draw(requires_grad=True))
    assert ops == {"masked_softmax_backward": 1}


@pytest.mark.parametrize("name", ["in place", "biased and then filled"])
def test_an_exported_and_a_traced_graph_become_one_call_too(entries, name):
    form, arguments = FORMS[name]
    for entry in ("export", "symbolic_trace"):
        rewritten = entries[entry](form, *draw())
        assert _call(rewritten) == f"masked_softmax({arguments})"
        assert rewritten.results == ["masked_softmax"]


# --- numbers that are assigned --------------------------------------------------------------------


def _assigned(selected):
    def model(x, keep, bias):
        scores = x * 0.5
        scores[selected(x, keep)] = -1e9
        return scores.softmax(-1)

    return model


def test_a_number_that_is_assigned_by_a_mask_is_its_value(rewrite_dynamo):
    model = _assigned(lambda x, keep: keep.expand_as(x))
    rewritten = rewrite_dynamo(model, *draw())
    arguments = "mask=logical_not(keep), scale=0.5, mask_value=-1000000000.0"
    assert _call(rewritten) == f"masked_softmax(x, {arguments})"
    assert_agrees(rewritten.call, model, draw(requires_grad=True))


SELECTED = {
    "rows": lambda x, keep: x[..., 0] > 0,
    "numbers": lambda x, keep: torch.tensor([1, 0]),
    "a slice": lambda x, keep: slice(1),
}


@pytest.mark.parametrize("selected", SELECTED.values(), ids=SELECTED)
def test_a_number_that_is_assigned_otherwise_stays(rewrite_dynamo, selected):
    rewritten = assert_becomes(rewrite_dynamo, _assigned(selected), draw(), {"softmax": 1})
    assert any(node.name == "setitem" for node in rewritten.graphs[0].graph.nodes)


# --- scales and mask values as tensors without dimensions -----------------------------------------


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_scale_and_mask_value_may_be_tensors_made_of_numbers(entries, entry):
    def model(x, keep, bias):
        x = x / torch.tensor(8.0) * torch.full([], 2.0, dtype=x.dtype)
        return torch.where(keep, x, torch.full([], torch.finfo(x.dtype).min)).softmax(-1)

    inputs = draw(dtype=torch.float32)
    rewritten = assert_becomes(entries[entry], model, inputs, {"masked_softmax": 1})
    assert arguments_of(rewritten)["scale"] == 0.25


def test_a_number_is_what_its_tensors_dtype_holds(rewrite_dynamo):
    def model(x, keep, bias):
        return (x / torch.tensor(0.3)).softmax(-1)

    rewritten = rewrite_dynamo(model, *draw())
    assert arguments_of(rewritten)["scale"] == 1 / torch.tensor(0.3).item() != 1 / 0.3


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_a_tensor_of_a_number_that_is_overwritten_is_not_taken_for_it(entries, entry):
    def model(x, keep, bias):
        scale = torch.tensor(2.0)
        scale.mul_(3)
        return (x * scale).softmax(-1)

    rewritten_alike(entries[entry], model, draw())


def test_a_scale_that_depends_on_a_size_compiles_once_for_all_of_them(rewrite_dynamo):
    def model(x, keep, bias):
        return (x * x.shape[0] + bias).softmax(-1)

    rewritten = rewrite_dynamo(model, *draw(4), dynamic=True)
    assert_one_graph(rewritten, model, [draw(batch) for batch in (2, 3, 5)])
    assert rewritten.replaced == {"masked_softmax": 1}
    assert arguments_of(rewritten)["scale"] == 1.0


def test_a_scale_as_a_graph_input_is_found(rewrite_dynamo):
    class Model(torch.nn.Module):
        scale = 0.3

        def forward(self, x, keep, bias):
            return (x * self.scale).masked_fill(~keep, -INF).softmax(-1)

    rewritten = rewrite_dynamo(Model(), *draw(), dynamic=True)
    assert arguments_of(rewritten)["scale"] == 0.3
