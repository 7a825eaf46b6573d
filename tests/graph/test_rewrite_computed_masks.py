"""Masks that a graph computes from positions become bounds of rows, which no memory holds."""

import pytest
import torch
from agreement import assert_agrees, assert_one_graph, rewritten_alike

INF = float("inf")
QUERIES, KEYS = 5, 8


def _ones(*shape, dtype=torch.bool):
    return torch.ones(shape or (6, 6), dtype=dtype)


def _scores(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def _positions(x):
    queries, keys = x.shape[-2:]
    return torch.arange(queries)[:, None] + (keys - queries), torch.arange(keys)[None, :]


#: Masks of positions q and k, lengths n of a batch and a bool tensor, and the call's arguments.
DYNAMIC = {
    "causal": (lambda q, k, n, keep: k <= q, "causal=True, diagonal=3"),
    "causal, strictly": (lambda q, k, n, keep: q > k, "causal=True, diagonal=2"),
    "window": (
        lambda q, k, n, keep: (k <= q) & (k > q - 3),
        "causal=True, diagonal=3, lower_diagonal=1",
    ),
    "window around": (
        lambda q, k, n, keep: (q - k).abs() <= 2,
        "causal=True, diagonal=5, lower_diagonal=1",
    ),
    "not outside of a window": (
        lambda q, k, n, keep: ~((q - k < -1) | torch.ge(q - k, 3)),
        "causal=True, diagonal=4, lower_diagonal=1",
    ),
    "least of two windows": (
        lambda q, k, n, keep: torch.logical_and(k <= q, k < q + 3),
        "causal=True, diagonal=3",
    ),
    "lengths": (lambda q, k, n, keep: k < n[:, None, None, None], "end=N"),
    "lengths and causality": (
        lambda q, k, n, keep: (k <= q) & (k < n[:, None, None, None]),
        "causal=True, diagonal=3, end=N",
    ),
    "left padding": (
        lambda q, k, n, keep: (k <= q) & (k >= n.view(-1, 1, 1, 1) - 1),
        "causal=True, diagonal=3, start=squeeze(sub(view(n, -1, 1, 1, 1), 1), -1)",
    ),
    "columns from the second on": (lambda q, k, n, keep: k >= 1, "start=scalar_tensor(1)"),
    "a bool tensor and causality": (
        lambda q, k, n, keep: (k <= q) & keep,
        "mask=keep, causal=True, diagonal=3",
    ),
    "magnitudes of lengths": (
        lambda q, k, n, keep: k < (n - 9).abs()[:, None, None, None],
        "end=squeeze(abs(sub(n, 9))[:, None, None, None], -1)",
    ),
    "magnitudes of numbers that are no positions": (
        lambda q, k, n, keep: (k <= q) & ((keep.long() - 1).abs() == 0),
        "mask=eq(abs(sub(long(keep), 1)), 0), causal=True, diagonal=3",
    ),
    "a view of a bool tensor and causality": (
        lambda q, k, n, keep: ((k <= q) & keep).view(-1, 1, len(q), k.shape[1]),
        "mask=keep, causal=True, diagonal=3",
    ),
}
#: Those of one size, and one whose rows may begin before the keys.
STATIC = {
    "tril and triu": (
        lambda q, k, n, keep: _ones(QUERIES, KEYS).tril(4).triu(-1),
        "causal=True, diagonal=4, lower_diagonal=-1",
    ),
    "tril of float": (
        lambda q, k, n, keep: _ones(QUERIES, KEYS, dtype=torch.float32).tril(2) == 1,
        "causal=True, diagonal=2",
    ),
    "not triu": (lambda q, k, n, keep: ~torch.triu(_ones(QUERIES, KEYS), 1), "causal=True"),
    "triu of zero": (
        lambda q, k, n, keep: _ones(QUERIES, KEYS, dtype=torch.float32).triu(1) == 0,
        "causal=True",
    ),
    "an ellipsis": (
        lambda q, k, n, keep: torch.arange(KEYS + 3)[None, ..., :KEYS][..., None, :] <= q,
        "causal=True, diagonal=3",
    ),
    "view and expand": (
        lambda q, k, n, keep: (
            _ones(QUERIES, KEYS).tril().view(1, 1, QUERIES, KEYS).expand(2, 1, -1, -1)
        ),
        "causal=True",
    ),
    "cumulative positions": (
        lambda q, k, n, keep: torch.ones(KEYS, dtype=torch.long).cumsum(0) - 1 <= q,
        "causal=True, diagonal=3",
    ),
    "always true of rows": (lambda q, k, n, keep: (k <= q) & (q >= 0), "causal=True, diagonal=3"),
}
MASKS = DYNAMIC | STATIC


def _model(mask):
    def model(x, n, keep):
        return x.masked_fill(~mask(*_positions(x), n, keep), -INF).softmax(-1)

    return model


def _inputs(batch=2, queries=QUERIES, keys=KEYS):
    keep = torch.rand(batch, 1, 1, keys) > 0.4
    keep[..., 1] = True
    return _scores(batch, 3, queries, keys), torch.arange(2, 2 + batch), keep


def _call(rewritten):
    """The arguments of the one call that has a mask, in the words of MASKS."""
    (call,) = (call for call in rewritten.calls if call.startswith("masked_softmax"))
    for lengths in ("squeeze(n[:, None, None, None], -1)", "squeeze(view(n, -1, 1, 1, 1), -1)"):
        call = call.replace(lengths, "N")
    for hidden in ("scale=1.0, ", "mask_value=-inf"):
        call = call.replace(hidden, "")
    arguments = call.removeprefix("masked_softmax(x, ").removesuffix(")")
    return arguments.replace(" ,", "").strip(", ")


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_positions_becomes_bounds_of_rows(rewrite_dynamo, name):
    mask, arguments = MASKS[name]
    rewritten = rewritten_alike(rewrite_dynamo, _model(mask), _inputs())
    assert _call(rewritten) == arguments and rewritten.results == ["masked_softmax"]


@pytest.mark.parametrize("name", [name for name in MASKS if "always" not in name])
def test_nothing_of_the_size_of_the_scores_is_computed_beside_them(rewrite_dynamo, name):
    rewritten = rewrite_dynamo(_model(MASKS[name][0]), *_inputs())
    nodes = [node for node in rewritten.graphs[0].graph.nodes if node.op.startswith("call")]
    masks = [node.meta["example_value"] for node in nodes if "softmax" not in node.name]
    assert all(isinstance(m, int) or m.shape[-2:] != (QUERIES, KEYS) for m in masks)


@pytest.mark.parametrize("name", MASKS)
def test_an_exported_mask_becomes_bounds_of_rows(entries, name):
    mask, inputs = MASKS[name][0], _inputs()
    rewritten = rewritten_alike(entries["export"], _model(mask), inputs)
    (node,) = (n for n in rewritten.graphs[0].graph.nodes if "masked_softmax" in str(n.target))
    assert (node.args[1] is not None) == ("keep" in MASKS[name][1])


@pytest.mark.parametrize("name", DYNAMIC)
def test_bounds_of_symbolic_lengths_hold_for_every_length(rewrite_dynamo, name):
    model = _model(MASKS[name][0])
    rewritten = rewrite_dynamo(model, *_inputs(), dynamic=True)
    (call,) = rewritten.calls
    assert ("mask=" in call) == ("keep" in MASKS[name][1])
    assert_one_graph(rewritten, model, [_inputs(3, 9, 9), _inputs(2, 4, 11)])


# --- masks that are added ------------------------------------------------------------------------


def _square(x):
    return torch.full(x.shape[-2:], -INF).triu(1)


ADDED = {
    "triu of -inf": lambda x: _square(x).to(x.dtype),
    "1 - tril": lambda x: (1.0 - torch.ones(x.shape[-2:], dtype=x.dtype).tril()) * -1e30,
    "rsub": lambda x: torch.rsub(torch.ones(x.shape[-2:], dtype=x.dtype).tril(), 1.0) * -1e30,
    "where": lambda x: torch.where(torch.ones(x.shape[-2:]).tril() == 1, 0.0, -1e30),
    "filled zeros": lambda x: torch.zeros(x.shape[-2:]).masked_fill(_square(x) < 0, -1e30),
    "two of -inf": lambda x: _square(x) + _square(x)[None, None],
    "filled in place": lambda x: torch.zeros(x.shape[-2:]).masked_fill_(_square(x) != 0, -1e30),
    "multiplied in place": lambda x: torch.full(x.shape[-2:], -1e30).mul_(_square(x) != 0),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize(
    ("entry", "options"),
    [("dynamo", {"dynamic": False}), ("dynamo", {"dynamic": True}), ("export", {})],
)
def test_a_mask_that_is_added_becomes_bounds_of_rows(entries, name, entry, options):
    def model(x, bias):
        mask = ADDED[name](x)
        return (x + bias + mask).softmax(-1)

    def inputs(length):
        return _scores(2, 3, length, length), _scores(1, 1, length, length)

    rewritten = entries[entry](model, *inputs(6), **options)
    (call,) = rewritten.calls
    assert call.startswith("masked_softmax(x, mask=bias, scale=1.0, causal=True")
    assert_one_graph(rewritten, model, [inputs(9 if options.get("dynamic") else 6)])


def _padded_and_causal(x, keep):
    visible = _ones(*x.shape[-2:]).tril() & keep
    return (x + torch.where(visible, 0.0, torch.finfo(torch.float32).min)).softmax(-1)


def _left_padded():
    keep = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    keep[1, ..., :3] = False  # three queries see nothing
    return keep


def test_without_gradients_a_padding_mask_is_parted_from_causality(rewrite_dynamo):
    inputs = torch.randn(2, 3, 6, 6), _left_padded()
    rewritten = rewritten_alike(rewrite_dynamo, _padded_and_causal, inputs)
    assert rewritten.calls == [
        "masked_softmax(x, mask=keep, scale=1.0, causal=True, mask_value=-3.4028234663852886e+38)"
    ]
    (site,) = rewritten.report.sites
    assert site.note == "the mask depends on the elements of l_keep_"


@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_rows_that_may_see_nothing_keep_the_gradients_of_an_added_mask(entries, entry):
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    rewritten = rewritten_alike(entries[entry], _padded_and_causal, [x, _left_padded()])
    (site,) = rewritten.report.sites
    assert site.note == "the mask adds a number, which rows that see no column may keep apart"


@pytest.mark.parametrize(
    "part, number",
    [(torch.tril, -1e4), (lambda ones: ones.triu(1), -1e30)],
    ids=["a score could outweigh it", "the last row sees nothing"],
)
def test_a_number_that_decides_a_result_stays_an_addend(rewrite_dynamo, part, number):
    def model(x):
        return (x + torch.where(part(torch.ones(6, 6)) == 1, 0.0, number)).softmax(-1)

    x = (torch.randn(2, 6, 6, dtype=torch.float64) * 1e4).requires_grad_()
    rewritten = rewritten_alike(rewrite_dynamo, model, [x])
    assert "causal" not in rewritten.calls[0] and "diagonal" not in rewritten.calls[0]


# --- positions and segments that the graph reads --------------------------------------------------


def test_a_position_that_the_graph_reads_ends_each_row(rewrite_dynamo):
    """As with a static key-value cache."""

    def model(x, cache_position):
        visible = torch.arange(x.shape[-1]) <= cache_position[:, None]
        return x.masked_fill(~visible, -INF).softmax(-1)

    x = torch.randn(2, 3, 4, 12, dtype=torch.float64, requires_grad=True)
    rewritten = rewrite_dynamo(model, x, torch.tensor([5, 6, 7, 8]))
    assert rewritten.calls == [
        "masked_softmax(x, scale=1.0, mask_value=-inf, "
        "end=add(clamp(squeeze(cache_position[:, None], -1), "
        "-2305843009213693952, 2305843009213693952), 1))"
    ]
    assert_agrees(rewritten.call, model, (x, torch.tensor([11, 2, 0, 30])))
    no_limit = torch.iinfo(torch.int64).max  # beyond which 1 would overflow
    assert_agrees(rewritten.call, model, (x, torch.tensor([11, 2, -no_limit - 1, no_limit])))


LATE = 1_700_000_000  # seconds since 1970


@pytest.mark.parametrize(
    "visible, limits",
    [
        (lambda k, a, _: k // 4 <= a, (torch.tensor([0, 2**31 - 1, 2], dtype=torch.int32),)),
        (lambda k, a, _: k + LATE >= a, (torch.tensor([0, 5, 10]) + LATE,)),
        (lambda k, a, b: k + a < b, (torch.arange(3) + LATE, torch.tensor([4, 9, 11]) + LATE)),
    ],
    ids=["the largest int32", "an offset", "two limits"],
)
def test_limits_may_be_as_large_as_their_dtype(rewrite_dynamo, visible, limits):
    def model(x, *limits):
        columns = (limit[:, None] for limit in (*limits, limits[0])[:2])
        return x.masked_fill(~visible(torch.arange(x.shape[-1]), *columns), -INF).softmax(-1)

    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    rewritten = rewrite_dynamo(model, x, *limits)
    assert "start=" in rewritten.calls[0] or "end=" in rewritten.calls[0]
    assert_agrees(rewritten.call, model, (x, *limits))


def _chunks(x):
    q, k = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
    return x.masked_fill(~((k <= q) & (k // 4 == q // 4)), -INF).softmax(-1)


def _chunks_of_an_added_mask(x):
    """Every row sees itself, so that the number that is added hides, with gradients too."""
    q, k = torch.arange(x.shape[-2])[:, None] + 1, torch.arange(x.shape[-1]) + 1
    visible = (k <= q) & ((k - 2) // 3 == (q - 2) // 3)
    return (x + torch.where(visible, 0.0, torch.finfo(torch.float32).min)).softmax(-1)


@pytest.mark.parametrize("model", [_chunks, _chunks_of_an_added_mask])
def test_chunks_begin_and_end_at_their_first_and_last_key(rewrite_dynamo, model):
    rewritten = rewritten_alike(rewrite_dynamo, model, [_scores(2, 3, 10, 10)])
    (call,) = rewritten.calls
    assert "mask=" not in call and "causal=True" in call and "start=" in call and "end=" in call


def _in_documents(x, segments):
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return x.masked_fill(~(same & _ones(*x.shape[-2:]).tril()), -INF).softmax(-1)


def _counted(x, position_ids):
    return _in_documents(x, (position_ids == 0).cumsum(-1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_documents_that_are_counted_become_bounds_of_rows(rewrite_dynamo, dynamic):
    inputs = _scores(2, 3, 7, 7), torch.tensor([[0, 1, 2, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5, 0]])
    rewritten = rewritten_alike(rewrite_dynamo, _counted, inputs, dynamic=dynamic)
    (call,) = rewritten.calls
    assert "mask=" not in call and "causal=True" in call and "searchsorted" in call


def test_segments_that_may_not_ascend_stay_a_mask_beside_causality(rewrite_dynamo):
    inputs = _scores(2, 3, 7, 7), torch.tensor([[3, 3, 1, 1, 3, 3, 0], [0, 1, 1, 2, 2, 2, 0]])
    rewritten = rewritten_alike(rewrite_dynamo, _in_documents, inputs)
    (call,) = rewritten.calls
    assert "mask=eq(" in call and "causal=True" in call
    (site,) = rewritten.report.sites
    assert site.note == "the mask depends on the elements of l_segments_"


# --- documents whose positions the graph reads ----------------------------------------------------

#: Positions in the documents of four sequences; those of the last two are in no order.
POSITIONS = torch.tensor(
    [[0, 1, 2, 0, 1, 0, 1], [4, 5, 6, 7, 0, 1, 2], [3, 1, 4, 1, 5, 9, 2], [1, 1, 2, 2, 3, 3, 4]]
)


def _number_of_document(positions):
    jumps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    return jumps.cumsum(-1)


def _indexed_by(positions):
    """A function that reads the positions of a batch at two indices that broadcast."""
    batch = torch.arange(positions.shape[0])[:, None, None, None]
    length = torch.arange(positions.shape[1])
    return lambda numbers: (numbers[batch, length[:, None]], numbers[batch, length])


def _viewed(positions):
    return lambda numbers: (numbers[:, None, :, None], numbers[:, None, None, :])


def _packed(of_rows_and_columns, rule):
    def model(x, positions):
        pair = of_rows_and_columns(positions)
        rows, columns = pair(_number_of_document(positions))
        visible = (rows == columns) & rule(*pair(positions))
        return (x + torch.where(visible, 0.0, torch.finfo(torch.float32).min)).softmax(-1)

    return model


IN_DOCUMENTS = {
    "causal": (lambda q, k: k <= q, "causal=True"),
    "window": (lambda q, k: (k <= q) & (k > q - 3), "lower_diagonal=-2"),
    "not after": (lambda q, k: ~(k > q), "causal=True"),
    "around": (lambda q, k: (k < q + 2) & (q < k + 2), "lower_diagonal=-1"),
}


@pytest.mark.parametrize("rule", IN_DOCUMENTS)
@pytest.mark.parametrize("form", [_indexed_by, _viewed], ids=["indexed", "viewed"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_positions_in_documents_are_compared_as_indices_are(rewrite_dynamo, rule, form, dynamic):
    """Each row sees itself, so that the number that is added hides, with gradients too."""
    compare, argument = IN_DOCUMENTS[rule]
    inputs = _scores(4, 3, 7, 7), POSITIONS
    rewritten = rewritten_alike(rewrite_dynamo, _packed(form, compare), inputs, dynamic=dynamic)
    (call,) = rewritten.calls
    assert "mask=" not in call and "bias=" not in call and argument in call and "start=" in call


def _causal_in_documents(x, numbers, positions):
    rows, columns = _viewed(positions)(numbers)
    q, k = _viewed(positions)(positions)
    return x.masked_fill(~((rows == columns) & (k <= q)), -INF).softmax(-1)


def _others(x, positions):
    return _causal_in_documents(x, _number_of_document(positions), positions.flip(0))


def _written_between_two_reads(x, given):
    positions = given.clone()
    numbers = _number_of_document(positions)
    positions.mul_(-1)
    return _causal_in_documents(x, numbers, positions)


@pytest.mark.parametrize("model", [_others, _written_between_two_reads])
def test_positions_that_are_not_those_of_the_documents_stay_a_mask(rewrite_dynamo, model):
    rewritten = rewritten_alike(rewrite_dynamo, model, [_scores(4, 3, 7, 7), POSITIONS])
    (call,) = rewritten.calls
    assert "mask=le(" in call and "start=" in call and "causal" not in call


@pytest.mark.parametrize("dynamic", [False, True])
def test_positions_that_rise_evenly_are_one_document(rewrite_dynamo, dynamic):
    def model(x):
        return _packed(_indexed_by, IN_DOCUMENTS["window"][0])(
            x, torch.arange(x.shape[-1])[None].expand(x.shape[0], -1) + 5
        )

    rewritten = rewrite_dynamo(model, _scores(2, 3, 7, 7), dynamic=dynamic)
    (call,) = rewritten.calls
    assert "mask=" not in call and "start" not in call and "lower_diagonal=-2" in call
    length = 9 if dynamic else 7
    assert_one_graph(rewritten, model, [[_scores(2, 3, length, length)]])


# --- documents by their lengths -------------------------------------------------------------------

OF_ENDS = {
    "searchsorted": lambda ends, n: torch.searchsorted(ends, torch.arange(n), right=True),
    "bucketize": lambda ends, n: torch.bucketize(torch.arange(n), ends, right=True),
    "repeated lengths": lambda ends, n: torch.repeat_interleave(
        ends.diff(prepend=ends.new_zeros(1)), output_size=n
    ),
    "counted": lambda ends, n: (torch.arange(n) >= ends[:, None]).sum(0),
    "repeated": lambda ends, n: torch.repeat_interleave(
        torch.arange(3), ends.diff(prepend=ends.new_zeros(1)), output_size=n
    ),
}


@pytest.mark.parametrize("name", OF_ENDS)
@pytest.mark.parametrize("entry", ["dynamo", "export"])
def test_documents_by_their_ends_become_bounds_of_rows(entries, entry, name):
    def model(x, ends):
        document = OF_ENDS[name](ends, x.shape[-1])
        same = document[:, None] == document[None, :]
        return (x + torch.where(same, 0.0, -1e30)).softmax(-1)

    inputs = _scores(2, 3, 8, 8), torch.tensor([3, 3, 8])
    rewritten = rewritten_alike(entries[entry], model, inputs)
    if entry == "dynamo":
        (call,) = rewritten.calls
        assert "mask=" not in call and "start=" in call and "end=" in call


def test_rows_that_do_not_see_themselves_keep_the_gradients_of_an_added_mask(rewrite_dynamo):
    """All rows are in the document of the first."""

    def model(x, positions):
        numbers = _number_of_document(positions)
        visible = numbers[:, None, :1, None] == numbers[:, None, None, :]
        visible = visible & (torch.arange(7)[:, None] <= torch.arange(7))
        return (x + torch.where(visible, 0.0, torch.finfo(torch.float32).min)).softmax(-1)

    x = torch.randn(4, 3, 7, 7, requires_grad=True)
    rewritten = rewritten_alike(rewrite_dynamo, model, [x, POSITIONS])
    assert "start=" not in rewritten.calls[0]


# --- numbers that do not ascend -------------------------------------------------------------------


def _with_the_last_first(segments, x):
    counted = (segments > 0).cumsum(-1)
    return counted[torch.arange(2)[:, None, None], torch.arange(x.shape[-1]) - 1], counted


def _written_before_they_are_counted(segments, x):
    marks = (segments > 0).long()
    marks.sub_(1)
    counted = marks.cumsum(-1)
    return counted[:, None, :], counted


def _written_after_they_are_counted(segments, x):
    counted = (segments > 0).cumsum(-1)
    counted.neg_()
    return counted[:, None, :], counted


def _written_places(segments, x):
    places = torch.arange(x.shape[-1])
    places.neg_()
    counted = torch.searchsorted(torch.tensor([-4, -2]), places)[None].expand(2, -1)
    return counted[:, None, :], counted


def _repeated_row_after_row(segments, x):
    rows = torch.arange(2).expand(2, -1)
    repeated = torch.repeat_interleave(rows, torch.tensor([2, 2, 2, 1]), output_size=7)
    numbers = repeated[None].expand(2, -1)
    return numbers[:, None, :], numbers


def _picked_from_a_diagonal(segments, x):
    counted = (segments[0] > segments[0, :, None]).cumsum(-1)
    places = torch.arange(x.shape[-1])
    numbers = counted[places, places][None].expand(2, -1)
    return numbers[:, None, :], numbers


NOT_ASCENDING = [
    _with_the_last_first,
    _written_before_they_are_counted,
    _written_after_they_are_counted,
    _written_places,
    _repeated_row_after_row,
    _picked_from_a_diagonal,
]


@pytest.mark.parametrize("numbers", NOT_ASCENDING, ids=lambda f: f.__name__.strip("_"))
def test_numbers_that_do_not_ascend_stay_a_mask(rewrite_dynamo, numbers):
    def model(x, segments):
        columns, rows = numbers(segments, x)
        same = rows[:, None, :, None] == columns[:, None]
        return x.masked_fill(~same, -1.0).softmax(-1)

    inputs = _scores(2, 3, 7, 7), torch.tensor([[1, 0, 1, 0, 0, 2, 0], [0, 0, 1, 1, 0, 0, 1]])
    rewritten = rewritten_alike(rewrite_dynamo, model, inputs)
    assert "start=" not in rewritten.calls[0]


# --- masks that stay ------------------------------------------------------------------------------


def test_a_mask_of_two_intervals_stays_a_mask_with_the_reason(rewrite_dynamo):
    def model(x):
        q, k = torch.arange(6)[:, None], torch.arange(6)
        return x.masked_fill(~((k <= q) | (k == 5)), -INF).softmax(-1)

    rewritten = rewritten_alike(rewrite_dynamo, model, [_scores(2, 6, 6).detach()])
    (site,) = rewritten.report.sites
    assert site.note == "the mask is not known to leave each row one interval of columns"


def _prefix(x):
    mask = torch.full((6, 6), -INF).triu(1)
    mask[:2, :2] = 0.0
    return x + mask


def _overwritten(x):
    visible = _ones().tril()
    visible[0, 3] = True
    return x.masked_fill(~visible, -INF)


def _viewed_and_filled(x):
    mask = _ones().triu(1)
    mask.view(-1)[3].fill_(False)
    return x.masked_fill(mask, -INF)


def _given_as_out(x):
    mask = torch.zeros(6, 6, dtype=torch.bool)
    torch.gt(torch.arange(6), torch.arange(6)[:, None], out=mask)
    return x.masked_fill(mask, -INF)


def _lengths_written_after_the_mask(x):
    lengths = torch.tensor([2, 3])[:, None, None] + 0
    scores = x.masked_fill(torch.arange(6) >= lengths, -INF)
    lengths += 2
    return scores


def _mask_written_after_its_inverse(x):
    keep = x.detach()[:, :1] > 0
    scores = x.masked_fill(~keep, -INF)
    keep[..., 2:] = False
    return scores


def _one_batch_of_several(x):
    keep = torch.arange(12).view(2, 1, 6) % 5 != 0
    return x.masked_fill(~keep[:1], -INF)


def _differences_beside_two_numbers(x):
    segments = (torch.diff(torch.arange(5), prepend=torch.full((2,), -1)) != 1).cumsum(-1)
    return x.masked_fill(segments[:, None] != segments, -1.0)


def _equal_after_rounding(x):
    levels = torch.where(torch.arange(6) <= torch.arange(6)[:, None], 0.1, 0.9)
    return x.masked_fill(levels == 0.9, -INF)


READ = {
    "prefix": _prefix,
    "overwritten": _overwritten,
    "viewed and filled": _viewed_and_filled,
    "given as out": _given_as_out,
    "lengths written after the mask": _lengths_written_after_the_mask,
    "mask written after its inverse": _mask_written_after_its_inverse,
    "one row of several": lambda x: x.masked_fill(
        (torch.arange(6)[:, None] < torch.arange(6) - 2)[:1], -INF
    ),
    "one batch of several": _one_batch_of_several,
    "triangle of one row": lambda x: x.masked_fill(~_ones(1, 6).tril(2), -INF),
    "equal after rounding": _equal_after_rounding,
    "differences beside two numbers": _differences_beside_two_numbers,
    "a part of a mask that is added": lambda x: (
        x + torch.where(torch.ones(7, 6).tril() == 1, 0.0, -1e30)[1:]
    ),
    "anti-causal": lambda x: x.masked_fill(~_ones().triu(), -INF),
    "nothing in the first row": lambda x: x.masked_fill(
        ~(_ones().tril(-1) | (torch.arange(6) == 5)), -INF
    ),
    "one row": lambda x: x.masked_fill(torch.arange(6) >= 4, -INF),
    "everything": lambda x: x.masked_fill(~_ones(), -INF),
}


@pytest.mark.parametrize("masked", READ.values(), ids=READ)
def test_a_mask_is_read_with_its_writes_at_its_size_and_as_torch_compares(rewrite_dynamo, masked):
    rewritten_alike(rewrite_dynamo, lambda x: masked(x).softmax(-1), [_scores(2, 6, 6).detach()])


def test_a_causal_buffer_stays_a_mask_as_it_may_change(rewrite_dynamo):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("visible", _ones().tril())

        def forward(self, x):
            return x.masked_fill(~self.visible, -INF).softmax(-1)

    model, x = Model(), _scores(2, 6, 6)
    rewritten = rewrite_dynamo(model, x)
    assert rewritten.replaced == {"masked_softmax": 1} and "causal" not in rewritten.calls[0]
    model.visible.fill_(True)
    torch.testing.assert_close(rewritten.call(x), x.softmax(-1), rtol=1e-12, atol=0)


def _filled(x, keep):
    return x.masked_fill(~keep, -INF) * 0.5


def _added(x, keep):
    return x + torch.zeros_like(x).masked_fill(~keep, -INF)


def _filled_with_a_number(x, keep):
    return x.masked_fill(~keep, torch.finfo(torch.float32).min)


PADDED = [_filled, _added, _filled_with_a_number]


@pytest.mark.parametrize("padded", PADDED, ids=lambda padded: padded.__name__.strip("_"))
@pytest.mark.parametrize("number", [-1e9, torch.finfo(torch.float32).min], ids=str)
def test_a_row_of_padding_alone_has_weights_where_a_number_is_added(rewrite, padded, number):
    """In the padding's own rows, causality leaves only columns that the padding hides. Others have
    weights too: the number that is added to their scores is no less than what the padding fills in.
    """

    def model(x, keep):
        causality = torch.full((6, 6), number, dtype=x.dtype).triu(1)
        return (padded(x, keep) + causality).softmax(-1)

    x = _scores(2, 3, 6, 6).detach()
    rewritten = rewritten_alike(rewrite, model, [x, _left_padded()])
    assert rewritten.replaced == {"masked_softmax": 1}


def test_an_input_that_is_added_may_hide_all_columns_that_a_mask_leaves(rewrite_dynamo):
    """A parameter hides none, so that beside it the mask becomes bounds."""

    def model(x, added):
        return (x @ x + added[..., :6] + torch.full((6, 6), -1e9).triu(1)).softmax(-1)

    x = _scores(2, 3, 6, 6).detach()
    padding = torch.zeros(2, 1, 1, 9, dtype=torch.float64).masked_fill(torch.arange(9) < 3, -INF)
    assert "causal" not in rewritten_alike(rewrite_dynamo, model, [x, padding]).calls[0]
    bias = torch.nn.Parameter(torch.randn(2, 1, 1, 9, dtype=torch.float64), requires_grad=False)
    assert "causal=True" in rewritten_alike(rewrite_dynamo, model, [x, bias]).calls[0]


def test_the_bits_of_a_float_are_not_its_value(rewrite_dynamo):
    """Those of 1.0 are not the int 1: no column is hidden."""

    def model(x):
        hidden = torch.ones(6, 6).triu(1).view(torch.int32) == 1
        return x.masked_fill(hidden, -INF).softmax(-1)

    rewritten = rewritten_alike(rewrite_dynamo, model, [_scores(2, 6, 6).detach()])
    assert "causal=True" not in rewritten.calls[0]


def test_a_padding_mask_that_is_written_after_the_mask_was_computed_is_not_read_later(
    rewrite_dynamo,
):
    def model(x, keep):
        keep = keep.clone()
        mask = keep & _ones().tril()
        keep.fill_(True)
        return x.masked_fill(~mask, -INF).softmax(-1), keep

    x = _scores(2, 3, 6, 6).detach()
    rewritten_alike(rewrite_dynamo, model, [x, _left_padded()])


DRAWN = {
    "rand_like": torch.rand_like,
    "bernoulli": torch.Tensor.bernoulli,
    "dropout": lambda x: torch.dropout(x, 0.5, True),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_random_call_that_only_shapes_a_mask_is_still_drawn(rewrite_dynamo, name):
    def model(x):
        hidden = torch.ones_like(DRAWN[name](x), dtype=torch.bool).triu(1)
        return x.masked_fill(hidden, -1e9).softmax(-1), torch.rand_like(x)

    x = torch.rand(2, 4, 4, dtype=torch.float64)
    rewritten = rewritten_alike(rewrite_dynamo, model, [x])
    assert rewritten.calls == [
        "masked_softmax(x, scale=1.0, causal=True, mask_value=-1000000000.0)"
    ]


def test_the_bytes_of_a_mask_count_at_the_last_site_that_uses_it(rewrite_dynamo):
    def model(x, y):
        mask = _ones().tril()
        return (s.masked_fill(~mask, -INF).softmax(-1) for s in (x, y))

    scores = torch.randn(2, 6, 6), torch.randn(2, 6, 6)
    sites = rewrite_dynamo(lambda x, y: tuple(model(x, y)), *scores).report.sites
    assert sites[0].bytes_saved < sites[1].bytes_saved


#: The first and the last diagonal of 5 queries and 8 keys that is seen, and how many keys are not.
DIAGONALS = {"causal": (-99, 0, 10), "window": (-2, 0, 25), "from a diagonal on": (-2, 99, 15)}


@pytest.mark.parametrize("name", DIAGONALS)
def test_scores_that_diagonals_hide_are_not_read(rewrite_dynamo, name):
    def saved(first, last):
        def model(x):
            q, k = _positions(x)
            visible = (k >= q + first) & (k <= q + last)
            return x.masked_fill(~visible, -INF).softmax(-1)

        (site,) = rewrite_dynamo(model, torch.randn(2, 3, QUERIES, KEYS)).report.sites
        return site.bytes_saved

    first, last, hidden = DIAGONALS[name]
    assert saved(first, last) - saved(-99, 99) == 2 * 3 * 4 * hidden


# --- any expression of positions ------------------------------------------------------------------

ATOMS = [
    lambda q, k, n, keep: k <= q,
    lambda q, k, n, keep: k > q - 3,
    lambda q, k, n, keep: q + 1 < k,
    lambda q, k, n, keep: k // 3 == q // 3,
    lambda q, k, n, keep: (k - q).abs() < 4,
    lambda q, k, n, keep: k < n[:, None, None, None],
    lambda q, k, n, keep: k - 1 >= n[:, None, None, None],
    lambda q, k, n, keep: k != 2,
    lambda q, k, n, keep: keep,
    lambda q, k, n, keep: q < 3,
    lambda q, k, n, keep: k * 2 < q + 3,
]


def _expression(seed):
    """A function that combines atoms by and, or and not, in an order drawn from a seed."""
    draws = torch.randint(0, 2**31, (12,), generator=torch.Generator().manual_seed(seed)).tolist()

    def mask(*positions):
        chosen = [ATOMS[draw % len(ATOMS)](*positions) for draw in draws[:4]]
        result = chosen[0]
        for atom, draw in zip(chosen[1:], draws[4:], strict=False):
            atom = ~atom if draw % 2 else atom
            result = result | atom if draw % 8 >= 6 else result & atom
        return ~result if draws[-1] % 4 == 0 else result

    return mask


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_expression_of_positions_hides_what_it_hides_in_eager_mode(
    rewrite_dynamo, seed, dynamic
):
    model = _model(_expression(seed))
    rewritten = rewrite_dynamo(model, *_inputs(), dynamic=dynamic)
    assert rewritten.replaced == {"masked_softmax": 1}
    assert_agrees(rewritten.call, model, _inputs(3, 6, 9) if dynamic else _inputs())
