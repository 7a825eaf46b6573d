"""Masks that hide the keys behind the query are recognised as causal, and no others are."""

import pytest
import torch
from masked_softmax_forms import INF, LENGTH, arguments_of, draw


def _ones():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool)


def _arange():
    keys = torch.arange(LENGTH)
    return keys[None, :] <= keys[:, None]


def _of_longer_positions():
    keys = torch.arange(LENGTH + 3)[None, ..., :LENGTH]
    return keys[..., None, :] <= keys[..., None]


def _nested():
    return _ones().tril().view(1, 1, LENGTH, LENGTH).expand(2, 1, -1, -1)


CAUSAL = {
    "tril of bool": lambda: _ones().tril(),
    "tril of float": lambda: torch.ones(LENGTH, LENGTH).tril() == 1,
    "not triu": lambda: ~torch.triu(_ones(), 1),
    "triu of zero": lambda: torch.ones(LENGTH, LENGTH).triu(1) == 0,
    "arange": _arange,
    "an ellipsis": _of_longer_positions,
    "view and expand": _nested,
}


@pytest.mark.parametrize("entry", ["dynamo", "export"])  # symbolic_trace stores it, as a buffer
@pytest.mark.parametrize("mask", CAUSAL)
def test_a_causal_mask_that_the_graph_builds_is_recognised(entries, entry, mask):
    def model(x, keep, bias):
        return (x * 0.5).masked_fill(~CAUSAL[mask](), -INF).softmax(-1)

    arguments = draw()
    rewritten = entries[entry](model, *arguments)
    given = arguments_of(rewritten)
    assert (given["mask"], given["causal"], given["diagonal"]) == (None, True, 0)
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


@pytest.mark.parametrize("diagonal", [0, 1, 2])
def test_the_diagonal_of_keys_that_come_before_the_queries_is_kept(rewrite_dynamo, diagonal):
    def model(x):
        hidden = torch.ones(4, 6, dtype=torch.bool).triu(diagonal + 1)
        return x.masked_fill(hidden, -INF).softmax(-1)

    x = torch.randn(2, 4, 6, dtype=torch.float64)
    rewritten = rewrite_dynamo(model, x)
    given = arguments_of(rewritten)
    assert (given["mask"], given["causal"], given["diagonal"]) == (None, True, diagonal)
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-12, atol=0)


def _overwritten():
    mask = _ones().tril()
    mask[0, 3] = True
    return mask


def _overwritten_through_a_view():
    mask = _ones().tril()
    mask[0].fill_(True)
    return mask


OTHERS = {
    "anti-causal": lambda: _ones().triu(),
    "nothing in the first row": lambda: _ones().tril(-1) | (torch.arange(LENGTH) == 5),
    "one row": lambda: torch.arange(LENGTH) < 4,
    "everything": lambda: _ones(),
    "overwritten": _overwritten,
    "overwritten through a view": _overwritten_through_a_view,
}


@pytest.mark.parametrize("mask", OTHERS)
def test_a_mask_that_is_not_causal_stays_a_mask(rewrite_dynamo, mask):
    def model(x, keep, bias):
        return (x * 0.5).masked_fill(~OTHERS[mask](), -INF).softmax(-1)

    arguments = draw()
    rewritten = rewrite_dynamo(model, *arguments)
    assert arguments_of(rewritten)["causal"] is False
    torch.testing.assert_close(rewritten.call(*arguments), model(*arguments), rtol=1e-12, atol=0)


def test_a_causal_buffer_stays_a_mask_as_it_may_change(rewrite_dynamo):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("visible", _ones().tril())

        def forward(self, x):
            return x.masked_fill(~self.visible, -INF).softmax(-1)

    model, x = Model(), torch.randn(2, LENGTH, LENGTH, dtype=torch.float64)
    rewritten = rewrite_dynamo(model, x)
    assert arguments_of(rewritten)["causal"] is False
    model.visible.fill_(True)
    torch.testing.assert_close(rewritten.call(x), x.softmax(-1), rtol=1e-12, atol=0)


def test_a_causal_mask_of_a_symbolic_length_is_recognised(rewrite_dynamo):
    def model(x):
        visible = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).tril()
        return x.masked_fill(~visible, -INF).softmax(-1)

    rewritten = rewrite_dynamo(model, torch.randn(2, 6, 6, dtype=torch.float64), dynamic=True)
    assert rewritten.calls == ["masked_softmax(x, scale=1.0, causal=True, mask_value=-inf)"]
    x = torch.randn(3, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(rewritten.call(x), model(x), rtol=1e-12, atol=0)
    assert len(rewritten.graphs) == 1
