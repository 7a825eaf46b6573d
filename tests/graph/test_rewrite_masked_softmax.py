"""masked_softmax takes in scales, masks and biases in front of a softmax, in all their forms."""

import pytest
import torch
from masked_softmax_forms import (
    FORMS,
    INF,
    LENGTH,
    arguments_of,
    biased_and_then_filled,
    capped,
    chosen,
    chosen_by_method,
    chosen_the_other_way_round,
    decomposed,
    divided,
    draw,
    dropped_out_in_inference,
    every_form,
    filled_and_then_scaled,
    filled_causally,
    filled_causally_and_by_a_mask,
    filled_twice,
    filled_where_not,
    filled_where_true,
    filled_where_zero,
    filled_with_the_least_number,
    product_with_a_mask,
    scaled,
    scaled_and_masked_in_place,
    scaled_twice_from_the_left,
    with_a_bias_from_the_left,
    with_a_bias_under_the_scale,
    with_a_mask_added,
    with_a_mask_subtracted,
    with_bias_and_mask,
    with_three_addends,
)

from fusedops.graph import rewrite_graph


@every_form
def test_every_form_is_one_op_with_eagers_values(rewrite, form):
    arguments = draw()
    rewritten = rewrite(form, *arguments)
    assert rewritten.replaced == {"masked_softmax": 1} and rewritten.reasons == []
    torch.testing.assert_close(rewritten.call(*arguments), form(*arguments), rtol=1e-12, atol=0)


@every_form
def test_every_form_has_eagers_gradients(rewrite_dynamo, form):
    x, keep, bias = draw()
    leaves = x.requires_grad_(), bias.requires_grad_()
    rewritten = rewrite_dynamo(form, x, keep, bias)
    assert rewritten.replaced == {"masked_softmax": 1}
    ours, eager = (
        torch.autograd.grad(f(x, keep, bias).sin().sum(), leaves, allow_unused=True)
        for f in (rewritten.call, form)
    )
    torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-14)


@every_form
def test_every_form_is_found_and_compiled_once_for_all_batch_sizes(rewrite_dynamo, form):
    rewritten = rewrite_dynamo(form, *draw(4), dynamic=True)
    for batch in (2, 5, LENGTH):
        arguments = draw(batch)
        torch.testing.assert_close(rewritten.call(*arguments), form(*arguments), rtol=1e-12, atol=0)
    assert rewritten.replaced == {"masked_softmax": 1} and len(rewritten.graphs) == 1


@pytest.mark.parametrize("form", [with_bias_and_mask, filled_causally_and_by_a_mask])
def test_the_backward_pass_is_our_op_too(backward_ops, form):
    x, keep, bias = draw()
    arguments = x.requires_grad_(), keep, bias.requires_grad_()
    assert backward_ops(form, *arguments) == {"masked_softmax_backward": 1}


# --- what the operator computes instead of the model ----------------------------------------------

#: The operator's call that each form becomes.
FACTORS = {
    scaled: "masked_softmax(x, scale=0.5, mask_value=-inf)",
    divided: "masked_softmax(x, scale=0.35355339059327373, mask_value=-inf)",
    scaled_twice_from_the_left: "masked_softmax(x, scale=0.5, mask_value=-inf)",
    capped: "masked_softmax(x, mask=bias[:, :1], scale=1.0, mask_value=-inf, softcap=50.0)",
}
ADDENDS = {
    with_a_mask_added: "masked_softmax(x, mask=bias[:, :1], scale=0.5, mask_value=-inf)",
    with_a_mask_subtracted: (
        "masked_softmax(x, mask=neg(mul(1e+30, to(invert(keep), torch.float64))), scale=0.5, "
        "mask_value=-inf)"
    ),
    with_a_bias_from_the_left: "masked_softmax(x, mask=bias[:, :1], scale=0.125, mask_value=-inf)",
    with_bias_and_mask: (
        "masked_softmax(x, mask=bias[:1, :1], scale=1.0, mask_value=-inf, bias=bias)"
    ),
}
MASKS = {
    filled_where_zero: "masked_softmax(x, mask=keep, scale=0.125, mask_value=-1000000000.0)",
    filled_where_not: "masked_softmax(x, mask=keep, scale=1.0, mask_value=-inf)",
    filled_where_true: "masked_softmax(x, mask=keep, scale=1.0, mask_value=-10000.0)",
    filled_with_the_least_number: (
        "masked_softmax(x, mask=keep, scale=0.5, mask_value=-1.7976931348623157e+308)"
    ),
    chosen: "masked_softmax(x, mask=keep, scale=0.5, mask_value=-inf)",
    chosen_the_other_way_round: "masked_softmax(x, mask=keep, scale=0.5, mask_value=-1000000000.0)",
    chosen_by_method: "masked_softmax(x, mask=keep, scale=0.5, mask_value=-1000000000.0)",
    biased_and_then_filled: "masked_softmax(x, mask=keep, scale=0.5, mask_value=-inf, bias=bias)",
    decomposed: "masked_softmax(x, mask=keep, scale=0.5, mask_value=-1000000000.0)",
    scaled_and_masked_in_place: (
        "masked_softmax(matmul(x, x), mask=keep, scale=0.125, mask_value=-inf, bias=bias)"
    ),
}
CAUSAL = {
    filled_causally: "masked_softmax(x, scale=0.5, causal=True, mask_value=-inf)",
    filled_causally_and_by_a_mask: (
        "masked_softmax(x, mask=keep, scale=1.0, causal=True, mask_value=-inf)"
    ),
}


@pytest.fixture
def call_of(rewrite_dynamo):
    """call_of(form): the one call of our operators that the form becomes."""

    def call_of(form):
        (call,) = rewrite_dynamo(form, *draw()).calls
        return call

    return call_of


def each_of(forms):
    return pytest.mark.parametrize("form", forms, ids=lambda form: form.__name__)


@each_of(FACTORS)
def test_factors_of_the_scores_become_the_scale(call_of, form):
    assert call_of(form) == FACTORS[form]


@each_of(ADDENDS)
def test_one_addend_becomes_the_mask_and_another_the_bias(call_of, form):
    assert call_of(form) == ADDENDS[form]


def test_a_third_addend_stays_an_addition_to_the_scores(call_of):
    assert call_of(with_three_addends) == (
        "masked_softmax(add(x, bias[:, :1]), mask=bias[:1, :1], scale=1.0, mask_value=-inf, "
        "bias=bias[:1])"
    )


def test_an_addend_in_front_of_the_scale_is_scaled_by_itself(call_of):
    assert call_of(with_a_bias_under_the_scale) == (
        "masked_softmax(x, mask=bias[:, :1], scale=0.5, mask_value=-inf, "
        "bias=mul(bias[:, :1, :1], 0.5))"
    )


@each_of(MASKS)
def test_a_bool_mask_is_given_as_what_it_keeps_and_with_its_value(call_of, form):
    assert call_of(form) == MASKS[form]


def test_a_scale_behind_the_mask_scales_the_mask_value_too(call_of):
    assert call_of(filled_and_then_scaled) == (
        "masked_softmax(x, mask=keep, scale=0.5, mask_value=-5000.0)"
    )


def test_two_bool_masks_become_one(call_of):
    assert call_of(filled_twice) == (
        "masked_softmax(x, mask=logical_and(keep, logical_not(gt(bias[:1, :1], 1))), scale=0.25, "
        "mask_value=-inf)"
    )


@each_of(CAUSAL)
def test_a_causal_mask_is_no_tensor_of_the_operator(call_of, form):
    assert call_of(form) == CAUSAL[form]


def test_baddbmm_becomes_a_product_whose_factors_are_the_operators(call_of):
    assert call_of(product_with_a_mask) == (
        "masked_softmax(bmm(flatten(x, 0, 1), flatten(bias, 0, 1)), mask=mul(bias[0, 0], 0.5), "
        "scale=0.3, mask_value=-inf)"
    )


def flattened_product_behind_its_bias(x, keep, bias):
    return (bias.flatten(0, 1) + (x @ x).flatten(0, 1) * 0.5).softmax(-1)


def product_behind_what_is_made_of_one(x, keep, bias):
    return ((bias @ bias).relu() + (x @ x) * 0.5).softmax(-1)


PRODUCTS = {
    flattened_product_behind_its_bias: "flatten(matmul(x, x), 0, 1), mask=flatten(bias, 0, 1)",
    product_behind_what_is_made_of_one: "matmul(x, x), mask=relu(matmul(bias, bias))",
}


@each_of(PRODUCTS)
def test_of_two_addends_the_matrix_product_is_the_scores(call_of, form):
    assert call_of(form) == f"masked_softmax({PRODUCTS[form]}, scale=0.5, mask_value=-inf)"


def test_a_dropout_that_does_nothing_stays_behind_the_operator(rewrite_dynamo):
    rewritten = rewrite_dynamo(dropped_out_in_inference, *draw())
    assert rewritten.calls == ["masked_softmax(x, mask=bias, scale=0.5, mask_value=-inf)"]
    assert rewritten.results == ["dropout(masked_softmax, 0.5)"]


@each_of([form for form in FORMS if form is not dropped_out_in_inference])
def test_nothing_that_the_operator_computes_is_computed_beside_it(rewrite_dynamo, form):
    rewritten = rewrite_dynamo(form, *draw())
    assert rewritten.results == ["masked_softmax"] and rewritten.unused == []


def test_an_exported_graph_becomes_one_call(entries):
    rewritten = entries["export"](scaled_and_masked_in_place, *draw())
    assert rewritten.calls == [
        "masked_softmax(matmul(args_0, args_0), mask=args_1, scale=0.125, bias=args_2)"
    ]
    assert rewritten.results == ["masked_softmax"] and rewritten.unused == []


def test_a_traced_graph_becomes_one_call(entries):
    rewritten = entries["symbolic_trace"](biased_and_then_filled, *draw())
    assert rewritten.calls == [MASKS[biased_and_then_filled]]
    assert rewritten.results == ["masked_softmax"] and rewritten.unused == []


def test_a_second_run_changes_nothing(rewrite):
    rewritten = rewrite(biased_and_then_filled, *draw())
    code = rewritten.code
    assert rewrite_graph(rewritten.graphs[0].graph).sites == () and rewritten.code == code


# --- scales and mask values as tensors without dimensions -----------------------------------------


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_scale_and_mask_value_may_be_tensors_made_of_numbers(entries, entry):
    def model(x, keep, bias):
        x = x / torch.tensor(8.0) * torch.full([], 2.0, dtype=x.dtype)
        return torch.where(keep, x, torch.full([], torch.finfo(x.dtype).min)).softmax(-1)

    arguments = draw(dtype=torch.float32)
    rewritten = entries[entry](model, *arguments)
    assert rewritten.replaced == {"masked_softmax": 1}
    assert arguments_of(rewritten)["scale"] == 0.25
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments))


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

    arguments = draw()
    rewritten = entries[entry](model, *arguments)
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


def test_a_scale_that_depends_on_a_size_compiles_once_for_all_of_them(rewrite_dynamo):
    def model(x, keep, bias):
        return (x * x.shape[0] + bias).softmax(-1)

    rewritten = rewrite_dynamo(model, *draw(4), dynamic=True)
    for batch in (2, 3, 5):
        arguments = draw(batch)
        torch.testing.assert_close(rewritten.call(*arguments), model(*arguments))
    assert len(rewritten.graphs) == 1 and rewritten.replaced == {"masked_softmax": 1}
    assert arguments_of(rewritten)["scale"] == 1.0


def test_a_scale_as_a_graph_input_is_found(rewrite_dynamo):
    class Model(torch.nn.Module):
        scale = 0.3

        def forward(self, x, keep, bias):
            return (x * self.scale).masked_fill(~keep, -INF).softmax(-1)

    rewritten = rewrite_dynamo(Model(), *draw(), dynamic=True)
    assert arguments_of(rewritten)["scale"] == 0.3
