"""A chain becomes one op only if its calls ran in the same grad, inference and autocast modes."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_agrees, assert_becomes, rewritten_alike
from torch import nn

from fusedops.graph.analysis.modes import Modes, modes

EPS = 1e-5


def _layer_norm_decomposed(x, mean, variance):
    return (x - mean) / torch.sqrt(variance + EPS)


def _moments(x):
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).pow(2).mean(-1, keepdim=True)


def _sum_without_gradient(x, y):
    with torch.no_grad():
        s = x + y
    return F.layer_norm(s, (8,)) * x


def _scores_without_gradient(x, y):
    with torch.no_grad():
        z = x * 0.5 + y
    return z.softmax(-1) * x


def _sum_of_inference_mode(x, y):
    with torch.inference_mode():
        s = x + y
    return F.rms_norm(s, (8,)) * x


def _sum_behind_a_call_that_switches(x, y):
    torch.set_grad_enabled(False)
    s = x + y
    torch.set_grad_enabled(True)
    return F.layer_norm(s, (8,)) * x


def _mode_switched_on_again_inside(x, y):
    with torch.no_grad():
        s = x + y
        with torch.enable_grad():
            return F.layer_norm(s, (8,)) + x


def _inference_mode_left_inside(x, y):
    with torch.no_grad():
        with torch.inference_mode(False):  # which switches gradients on
            s = x + y
        return F.layer_norm(s, (8,)) + s


def _norm_without_gradient(x, y):
    s = x + y
    with torch.no_grad():
        n = F.layer_norm(s, (8,))
    return n * x + s


def _scores_of_which_only_the_bias_is_tracked(x, y):
    with torch.no_grad():
        z = x * 0.5
    return (z + y[0]).softmax(-1)


def _sum_of_another_autocast(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        s = x + y
    return F.layer_norm(s, (8,)) * x


def _stack_of_two_modes(x, y):
    with torch.no_grad():
        a = x.softmax(-1)
    return torch.stack([a, y.softmax(-1)])


def _log_sum_without_gradient(x, y):
    target = torch.arange(8)
    with torch.no_grad():
        z = x.logsumexp(-1)
    return F.cross_entropy(x, target), z * y[0]


def _loss_without_gradient(x, y):
    with torch.no_grad():
        loss = F.cross_entropy(x, torch.arange(8))
    return loss * y, x.logsumexp(-1)


def _statistics_without_gradient(x, y):
    with torch.no_grad():
        mean, variance = _moments(x)
    return _layer_norm_decomposed(x, mean, variance) * y


def _variance_without_gradient(x, y):
    with torch.no_grad():
        _, variance = _moments(x)
    return _layer_norm_decomposed(x, x.mean(-1, keepdim=True), variance) * y


def _root_without_gradient(x, y):
    with torch.no_grad():
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return x * root * y


def _maximum_and_sum_without_gradient(x, y):
    with torch.no_grad():
        m = x.amax(-1, keepdim=True)
        total = torch.exp(x - m).sum(-1, keepdim=True)
    return torch.exp(x - m) / total * y


def _detached_statistics(x, y):
    mean, variance = _moments(x)
    return _layer_norm_decomposed(x, mean.detach(), variance.detach()) * y


#: By their models: the ops in one mode. A norm or softmax that is decomposed in two modes is left.
SHORTER = {
    _sum_without_gradient: {"layer_norm": 1},
    _scores_without_gradient: {"softmax": 1},
    _sum_of_inference_mode: {"rms_norm": 1},
    _sum_behind_a_call_that_switches: {"layer_norm": 1},
    _mode_switched_on_again_inside: {"layer_norm": 1},
    _inference_mode_left_inside: {"layer_norm": 1},
    _norm_without_gradient: {"layer_norm": 1},
    _scores_of_which_only_the_bias_is_tracked: {"masked_softmax": 1},
    _sum_of_another_autocast: {"layer_norm": 1},
    _stack_of_two_modes: {"softmax": 2},
    _log_sum_without_gradient: {"cross_entropy": 1},
    _loss_without_gradient: {"cross_entropy": 1},
    _statistics_without_gradient: {},
    _variance_without_gradient: {},
    _root_without_gradient: {},
    _maximum_and_sum_without_gradient: {},
    _detached_statistics: {},
}


#: torch.export itself leaves inference_mode out.
ENTRIES_AND_MODELS = [("dynamo", model) for model in SHORTER]
ENTRIES_AND_MODELS += [("export", model) for model in SHORTER if "inference" not in model.__name__]


def _inputs():
    return [torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]


@pytest.mark.parametrize(("entry", "model"), ENTRIES_AND_MODELS)
def test_the_part_of_a_chain_that_lies_in_one_mode_is_replaced(entries, entry, model):
    assert rewritten_alike(entries[entry], model, _inputs()).replaced == SHORTER[model]


def _all_without_gradient(x, y):
    with torch.no_grad():
        n = F.layer_norm(x + y, (8,))
    return n + x


def _around_a_block(x, y):
    s = x + y
    with torch.no_grad():
        scale = s.abs().mean()
    return F.layer_norm(s, (8,)) * scale


def _in_two_blocks_alike(x, y):
    with torch.no_grad():
        s = x + y
    x = x * 2
    with torch.no_grad():
        n = F.layer_norm(s, (8,))
    return n + x


def _in_two_autocasts_alike(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        s = x + y
    x = x * 2
    with torch.autocast("cpu", torch.bfloat16):
        n = F.layer_norm(s, (8,))
    return n + x


def _with_a_causal_mask_made_without_gradient(x, y):
    with torch.no_grad():
        hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
    return (x @ y * 0.5).masked_fill(hidden, float("-inf")).softmax(-1)


WHOLE = {
    _all_without_gradient: "add_layer_norm",
    _around_a_block: "add_layer_norm",
    _in_two_blocks_alike: "add_layer_norm",
    _in_two_autocasts_alike: "add_layer_norm",
    _with_a_causal_mask_made_without_gradient: "masked_softmax",
}


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: model.__name__)
def test_a_chain_in_one_mode_is_replaced_whole_whatever_lies_between(rewrite_dynamo, model):
    rewritten = rewritten_alike(rewrite_dynamo, model, _inputs())
    assert rewritten.replaced == {WHOLE[model]: 1}
    assert "_unchanged" not in rewritten.code and "mask=" not in rewritten.calls[0]


def test_a_sum_read_in_another_mode_is_made_in_its_own(rewrite_dynamo):
    rewritten = rewrite_dynamo(_around_a_block, *_inputs())
    op, switch = (rewritten.code.index(name) for name in ("add_layer_norm", "_set_grad_enabled"))
    assert op < switch


def test_a_product_inside_autocast_is_judged_as_autocast_has_it(rewrite_dynamo):
    def model(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.baddbmm(y[None], x[None], y[None]).softmax(-1)

    inputs = [torch.randn(8, 8) for _ in range(2)]
    assert_becomes(rewrite_dynamo, model, inputs, {"masked_softmax": 1}, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_a_symbolic_trace_has_no_modes_and_is_rewritten_without_them(entries, around):
    def model(x, y):
        with around():
            s = x + y
        return F.layer_norm(s, (8,))

    rewritten = entries["symbolic_trace"](model, *_inputs())
    assert rewritten.replaced == {"add_layer_norm": 1}
    assert_agrees(rewritten.call, torch.fx.symbolic_trace(model), _inputs())


def test_tensors_of_inference_mode_are_not_kept(rewrite_dynamo):
    def model(x, y):
        with torch.inference_mode():
            h = x * 0.5
        return _layer_norm_decomposed(h, *_moments(h)) * y[0]

    assert rewritten_alike(rewrite_dynamo, model, _inputs()).replaced == {"layer_norm": 1}


def test_modes_are_restored_where_a_block_ends():
    def model(x):
        a = x.sin()
        with torch.inference_mode():
            b = x.cos()
            with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
                c = x.tan()
        torch.set_grad_enabled(False)
        return a + b.clone() + c.clone()

    seen = {}

    def record(graph_module, example_inputs):
        seen.update((node.name, found) for node, found in modes(graph_module.graph))
        return graph_module

    with torch.enable_grad():
        torch.compile(model, backend=record)(torch.randn(4, requires_grad=True))
    autocast = (("cpu", torch.bfloat16, True, None),)
    assert seen["a"] == Modes()
    assert seen["b"] == Modes(grad=False, inference=True)
    assert seen["c"] == Modes(grad=True, inference=True, autocast=autocast)
    assert seen["add"] == Modes(grad=False)


def test_a_call_inside_autocast_is_decomposed_as_autocast_has_it(rewrite_dynamo):
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def model(x):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(x, x, x)[0]

    x = torch.randn(2, 4, 8, requires_grad=True)
    assert_becomes(rewrite_dynamo, model, [x], {"softmax": 1}, rtol=2e-2, atol=2e-2)
