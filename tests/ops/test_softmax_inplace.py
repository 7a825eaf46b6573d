"""softmax_ and out= write the same bits into given memory, and give no silently wrong gradient."""

import pytest
import torch
from oracle import DTYPES, same_bits

import fusedops

OPS = {"softmax": fusedops.softmax, "log_softmax": fusedops.log_softmax}

LAYOUTS = {
    "contiguous": lambda x: x,
    "row slice": lambda x: x[:, 3:40],
    "misaligned": lambda x: x.flatten()[1 : 1 + 8 * 45].view(8, 45),
    "every other column": lambda x: x[:, ::2],
    "transposed": lambda x: x.t(),
    "rank 4": lambda x: x.view(2, 2, 2, -1).permute(2, 0, 1, 3),
    "long rows": lambda x: x.repeat(1, 800),
    "fewer rows of more": lambda x: x.view(2, 4, 90)[:, :3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_in_place_function_has_the_bits_of_the_other(layout, dtype):
    source = torch.randn(8, 90).to(dtype)
    for dim in range(LAYOUTS[layout](source).dim()):
        memory = source.clone()
        x = LAYOUTS[layout](memory)
        expected = fusedops.softmax(x, dim)
        before = memory.clone()
        assert fusedops.softmax_(x, dim) is x
        assert same_bits(x, expected)
        # The memory beside the view is as it was.
        LAYOUTS[layout](before).copy_(expected)
        if layout != "long rows":
            assert same_bits(memory, before)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_out_takes_the_result_in_any_layout(op, layout, dtype):
    x = torch.randn(8, 90).to(dtype)
    view = LAYOUTS[layout](x)
    for dim in range(view.dim()):
        out = LAYOUTS[layout](torch.zeros_like(x))
        assert OPS[op](view, dim, out=out) is out
        assert same_bits(out, OPS[op](view, dim))


@pytest.mark.parametrize("op", OPS)
def test_out_may_be_the_input_or_overlap_it(op):
    x = torch.randn(9, 64)
    for dim in (0, 1):
        expected = OPS[op](x[:8], dim)
        for shift in (0, 1):
            memory = x.clone()
            OPS[op](memory[:8], dim, out=memory[shift : shift + 8])
            assert same_bits(memory[shift : shift + 8], expected)


@pytest.mark.parametrize("function", [fusedops.softmax, fusedops.masked_softmax])
def test_an_out_has_the_dtype_of_the_result(function):
    x, out = torch.randn(5, 33).bfloat16(), torch.empty(5, 33)
    dim = {"dim": 1} if function is fusedops.softmax else {}
    function(x, **dim, dtype=torch.float32, out=out)
    assert same_bits(out, function(x, **dim, dtype=torch.float32))
    before = out.clone()
    for dtype, wanted in ((None, "torch.bfloat16, input's"), (torch.float64, "torch.float64, the")):
        with pytest.raises(RuntimeError, match=f"out is torch.float32, wanted {wanted}"):
            function(x, **dim, dtype=dtype, out=out)
    assert same_bits(out, before)


def test_masked_softmax_into_its_own_input():
    x, mask = torch.randn(2, 5, 40), torch.rand(2, 1, 40) < 0.7
    for options in ({"causal": True}, {"bias": torch.randn(40)}, {"masked_rows": "zero"}):
        expected = fusedops.masked_softmax(x, mask, **options)
        memory = x.clone()
        assert fusedops.masked_softmax(memory, mask, **options, out=memory) is memory
        assert same_bits(memory, expected)


def test_a_bias_that_is_overwritten_is_read_first():
    memory = torch.randn(4, 30)
    x, expected = torch.randn(4, 30), None
    expected = fusedops.masked_softmax(x, bias=memory)
    fusedops.masked_softmax(x, bias=memory, out=memory)
    assert same_bits(memory, expected)


def test_in_place_between_other_operations_has_the_right_gradient():
    q, k = torch.randn(2, 3, 6, 5, dtype=torch.float64).requires_grad_()
    grads = []
    for softmax in (fusedops.softmax_, fusedops.softmax):
        scores = q @ k.transpose(-1, -2)
        loss = (softmax(scores, -1) @ k).pow(2).sum()
        grads.append(torch.autograd.grad(loss, (q, k)))
    torch.testing.assert_close(*grads)


def test_an_input_that_its_maker_still_needs_is_noticed():
    x = torch.randn(3, 5, requires_grad=True)
    y = fusedops.softmax_(x.exp(), -1)  # exp's derivative is its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writing_over_what_was_saved_is_noticed():
    x, w = torch.randn(3, 5), torch.randn(3, 5, requires_grad=True)
    for write in (
        lambda: fusedops.softmax_(x, -1),
        lambda: fusedops.softmax(torch.randn(3, 5), -1, out=x),
        lambda: fusedops.masked_softmax(torch.randn(3, 5), out=x),
    ):
        y = x * w
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_leaf_that_requires_grad_is_refused_untouched():
    x = torch.randn(3, 5, requires_grad=True)
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match="softmax_: input is a leaf that requires grad"):
        fusedops.softmax_(x, -1)
    with pytest.raises(RuntimeError, match="softmax_out writes into .* under torch.no_grad"):
        fusedops.softmax(x, -1, out=torch.empty(3, 5))
    with pytest.raises(RuntimeError, match="softmax_ writes into its argument"):
        torch.ops.fusedops.softmax_(x, -1)
    assert same_bits(x.detach(), before)
    with torch.no_grad():
        assert same_bits(fusedops.softmax_(x, -1), fusedops.softmax(before, -1))


VIEWS = {
    "a view of a leaf": (lambda leaf: leaf.view(5, 4), "a view of a leaf that requires grad"),
    "a slice of a leaf": (lambda leaf: leaf[1:], "a view of a leaf that requires grad"),
    "unbind": (lambda leaf: (leaf * 1).unbind()[1], "one of several views"),
    "chunk": (lambda leaf: (leaf * 1).chunk(2)[0], "one of several views"),
    "split": (lambda leaf: (leaf * 1).split(3)[0], "one of several views"),
    "a slice of a chunk": (lambda leaf: (leaf * 1).chunk(2)[0][:1], "one of several views"),
    "a view made without grad": (
        lambda leaf: torch.no_grad()(lambda t: t.view(5, 4))(leaf * 1),
        "a leaf that requires grad",
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_autograd_cannot_follow_is_refused_untouched(name):
    make, what = VIEWS[name]
    view = make(torch.randn(4, 5, requires_grad=True))
    before, version = view.detach().clone(), view._version
    with pytest.raises(RuntimeError, match=f"softmax_: input is {what}"):
        fusedops.softmax_(view, -1)
    assert same_bits(view.detach(), before) and view._version == version


def test_a_view_that_autograd_can_follow_is_written_and_has_the_right_gradient():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    grads = []
    for softmax in (fusedops.softmax_, torch.softmax):
        y = x * 2
        part = softmax(y[1:3], -1)
        z = torch.cat([y[:1], part, y[3:]])
        grads.append(torch.autograd.grad(z.pow(2).sum(), x)[0])
    torch.testing.assert_close(*grads)


def test_a_view_of_a_leaf_as_out_is_refused_untouched():
    leaf = torch.randn(4, 5, requires_grad=True)
    before = leaf.detach().clone()
    with pytest.raises(RuntimeError, match="argument out and has no derivative, but out requires"):
        fusedops.softmax(torch.randn(3, 5), -1, out=leaf[1:])
    with pytest.raises(RuntimeError, match="argument out and has no derivative, but out requires"):
        fusedops.masked_softmax(torch.randn(3, 5), out=leaf[1:])
    assert same_bits(leaf.detach(), before)


WRITERS = {
    "softmax_": lambda t: fusedops.softmax_(t, -1),
    "softmax_out": lambda t: fusedops.softmax(torch.randn(t.shape), -1, out=t),
    "log_softmax_": lambda t: torch.ops.fusedops.log_softmax_(t, -1),
    "masked_softmax_out": lambda t: fusedops.masked_softmax(torch.randn(t.shape), out=t),
    "softmax_backward_": lambda t: torch.ops.fusedops.softmax_backward_(t, t.exp(), -1),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_tensor_of_inference_mode_is_refused_untouched_outside_of_it(name):
    with torch.inference_mode():
        t = torch.randn(3, 5)
        before = t.clone()
    with pytest.raises(RuntimeError, match=rf"{name}: \w+ was made in inference mode"):
        WRITERS[name](t)
    assert torch.equal(t, before)
    with torch.inference_mode():
        WRITERS[name](t)


@pytest.mark.parametrize("name", WRITERS)
def test_a_lazy_view_is_refused_untouched(name):
    memory = torch.randn(3, 5)
    before = memory.clone()
    for lazy in (torch._neg_view(memory), torch._efficientzerotensor((3, 5))):
        with pytest.raises(RuntimeError, match=rf"{name}: \w+ is a lazy view"):
            WRITERS[name](lazy)
    assert same_bits(memory, before)


def test_a_refused_call_leaves_the_version_as_it_was():
    x, w = torch.randn(3, 5), torch.randn(3, 5, requires_grad=True)
    y = x * w
    with pytest.raises(RuntimeError, match="dim is 7"):
        fusedops.softmax_(x, 7)
    y.sum().backward()  # x is what was saved


@pytest.mark.parametrize("strides", [(0, 1), (3, 1)], ids=["expanded", "overlapping"])
def test_tensors_whose_elements_share_memory_are_refused_untouched(strides):
    x = torch.randn(20).as_strided((4, 5), strides)
    before = x.clone()
    with pytest.raises(RuntimeError, match="softmax_: elements of input share memory"):
        fusedops.softmax_(x, -1)
    with pytest.raises(RuntimeError, match="share memory"):
        fusedops.softmax(torch.randn(4, 5), -1, out=x)
    with pytest.raises(RuntimeError, match="share memory"):
        fusedops.masked_softmax(torch.randn(4, 5), out=x)
    assert same_bits(x, before)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_without_elements_shares_no_memory(device):
    x = torch.empty(0, 1, device=device).expand(0, 5)
    assert fusedops.softmax_(x, -1) is x


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_in_place_writes_into_the_input(dynamic):
    @torch.compile(fullgraph=True, dynamic=dynamic)
    def run(x):
        fusedops.softmax_(x, -1)
        return x + 1

    for rows in (4, 7):
        x = torch.randn(rows, 9)
        expected = fusedops.softmax(x, -1)
        torch.testing.assert_close(run(x), expected + 1)
        torch.testing.assert_close(x, expected)
