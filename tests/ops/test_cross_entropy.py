"""cross_entropy against float64: values, derivatives of every kind, transforms and compilers."""

import itertools
from collections import Counter

import pytest
import torch
from oracle import DTYPES, relative_error, same_bits
from torch import func
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db

import fusedops
from fusedops import nn, reference

ops = torch.ops.fusedops
#: The relative errors that a loss and a gradient may have: they are float32 for 16-bit logits, but
#: the gradient has 16 bits.
LOSS = {torch.float64: 1e-14}
GRADIENT = {torch.float64: 1e-14, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def logits(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return (3 * drawn).to(torch.get_default_device(), dtype)


def classes(*shape, count, ignored=-100, dtype=torch.int64):
    """Classes of which every third is ignored, and the first is the last class."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(count, shape, generator=generator, dtype=dtype, device="cpu")
    drawn.view(-1)[:1] = count - 1
    if ignored is not None:
        drawn.view(-1)[1::3] = ignored
    return drawn.to(torch.get_default_device())


def weights(count, dtype=torch.float64):
    return torch.linspace(0.5, 2.0, count, dtype=dtype)


def assert_close(loss, input, expected, exact):
    """The losses, and the gradients of their weighted sums, are those in float64."""
    assert loss.dtype == (torch.float64 if input.dtype == torch.float64 else torch.float32)
    assert loss.shape == expected.shape
    assert relative_error(loss.detach(), expected.detach()) < LOSS.get(input.dtype, 5e-7)
    factor = torch.linspace(0.5, 1.5, loss.numel(), dtype=torch.float64).view(loss.shape)
    (ours,) = torch.autograd.grad((loss * factor).sum(), input)
    (right,) = torch.autograd.grad((expected * factor).sum(), exact)
    assert ours.dtype == input.dtype
    assert relative_error(ours, right) < GRADIENT.get(input.dtype, 5e-7)


# --- values and gradients -----------------------------------------------------------------------

INTEGERS = (torch.int64, torch.int32, torch.uint8)
#: Shapes of logits, with the class dimension.
SHAPES = [((7,), 0), ((6, 9), 1), ((4, 5, 3), 1), ((2, 11, 3, 4), 1), ((3, 4, 300), -1)]
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothed": {"label_smoothing": 0.1},
    "wholly smoothed": {"label_smoothing": 1.0, "reduction": "none"},
    "another class is ignored": {"ignore_index": 2},
    "weighted": {"weight": True},
    "weighted, sum": {"weight": True, "reduction": "sum", "ignore_index": 0},
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_gradients_are_those_of_torch_in_float64(name, dtype):
    for (shape, dim), integers in zip(SHAPES, itertools.cycle(INTEGERS), strict=False):
        options = dict(OPTIONS[name])
        count = shape[dim]
        rows = [size for d, size in enumerate(shape) if d != dim % len(shape)]
        ignored = options.get("ignore_index", -100)
        if integers == torch.uint8 and ignored < 0:
            ignored = options["ignore_index"] = 255
        target = classes(*rows, count=count, ignored=ignored, dtype=integers)
        weight = weights(count) if options.pop("weight", False) else None
        input = logits(*shape, dtype=dtype).requires_grad_()
        exact = input.detach().double().requires_grad_()
        given = None if weight is None else weight.to(dtype)
        loss = fusedops.cross_entropy(input, target, given, dim=dim, **options)
        moved = exact.movedim(dim, 1) if len(shape) > 1 else exact
        weight = None if given is None else given.double()
        assert_close(loss, input, F.cross_entropy(moved, target.long(), weight, **options), exact)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"z_loss": 0.01},
        {"softcap": 5.0},
        {"softcap": 2.0, "z_loss": 0.1, "label_smoothing": 0.2},
        {"z_loss": 0.5, "weight": True},
    ],
    ids=str,
)
def test_what_torch_has_not_is_the_definition(options, dtype):
    if "weight" in options:
        options = {**options, "weight": weights(30)}
    input = logits(2, 4, 30, dtype=dtype).requires_grad_()
    exact, target = input.detach().double().requires_grad_(), classes(8, count=30).view(2, 4)
    losses, lse = fusedops.cross_entropy(
        input, target, dim=-1, reduction="none", return_lse=True, **options
    )
    expected, expected_lse = reference.cross_entropy(exact, target, **options)
    assert_close(losses + 0.3 * lse, input, expected + 0.3 * expected_lse, exact)
    ignored = target == -100
    assert not losses[ignored].any() and not lse[ignored].any()
    mean = fusedops.cross_entropy(input, target, dim=-1, **options)
    counts = options["weight"][target[~ignored]] if "weight" in options else torch.ones(5)
    torch.testing.assert_close(mean.double(), expected.sum() / counts.sum(), rtol=1e-6, atol=0)


def test_classes_that_are_innermost_in_memory_give_the_bits_of_the_last_dimension():
    x, target = logits(2, 4, 5, 33, dtype=torch.float32), classes(2, 4, 5, count=33)
    expected = fusedops.cross_entropy(x, target, dim=-1, reduction="none")
    inner = x.permute(0, 3, 1, 2)  # channels_last
    assert same_bits(fusedops.cross_entropy(inner, target, reduction="none"), expected)
    runs, of_runs = x[:, :, :-1], target[:, :, :-1]
    expected = fusedops.cross_entropy(runs.clone(), of_runs, dim=-1, reduction="none")
    assert same_bits(fusedops.cross_entropy(runs, of_runs, dim=-1, reduction="none"), expected)


def test_an_ignored_row_is_not_read_and_has_no_gradient_of_either_result():
    x = logits(3, 5)
    x[1] = torch.nan
    x.requires_grad_()
    target = torch.tensor([4, -1, 0])
    loss, lse = fusedops.cross_entropy(
        x, target, ignore_index=-1, z_loss=0.1, softcap=3.0, return_lse=True
    )
    (grad,) = torch.autograd.grad(loss + lse.sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), x)
    assert loss.isfinite() and grad.isfinite().all() and second.isfinite().all()
    assert lse[1] == 0 and not grad[1].any() and not second[1].any()


def test_no_class_is_ignored_where_none_is_named():
    x, target = logits(3, 5), torch.tensor([4, 0, 1])
    for reduction in ("mean", "sum", "none"):
        found = fusedops.cross_entropy(x, target, ignore_index=None, reduction=reduction)
        torch.testing.assert_close(found, F.cross_entropy(x, target, reduction=reduction))


def test_a_class_that_the_dtype_does_not_have_is_ignored_nowhere():
    x, target = logits(2, 200), torch.tensor([156, 3], dtype=torch.uint8)  # 156 - 256 is -100
    torch.testing.assert_close(fusedops.cross_entropy(x, target), F.cross_entropy(x, target.long()))
    loss = fusedops.cross_entropy(x, target.int(), ignore_index=2**32 + 3)
    torch.testing.assert_close(loss, F.cross_entropy(x, target.long()))


def test_means_over_no_rows_are_nan_and_sums_are_zero():
    x = logits(3, 5, dtype=torch.float32).requires_grad_()
    ignored, none = torch.full((3,), -100), torch.empty(0, dtype=torch.int64)
    for weight in (None, weights(5, torch.float32)):
        assert fusedops.cross_entropy(x, ignored, weight).isnan()
        assert fusedops.cross_entropy(x[:0], none, weight).isnan()
        assert fusedops.cross_entropy(x, ignored, weight, reduction="sum") == 0
    for without in (x[:0], x[:0, :0]):
        losses = fusedops.cross_entropy(without, none, reduction="none")
        assert losses.shape == (0,) and torch.autograd.grad(losses.sum(), x)[0].shape == (3, 5)
    (grad,) = torch.autograd.grad(fusedops.cross_entropy(x, ignored, reduction="sum"), x)
    assert not grad.any()


def test_the_loss_of_16_bit_logits_keeps_the_digits_of_float32():
    """torch rounds the first of them to 8 bits, and those of the last rows to 0."""
    x = torch.zeros(4, 3, dtype=torch.bfloat16)
    x[:, 0] = torch.tensor([6.0, 12.0, 20.0, 30.0])
    target = torch.zeros(4, dtype=torch.int64)
    losses = fusedops.cross_entropy(x, target, reduction="none")
    exact = torch.log1p(2 * torch.exp(-x[:, 0].double()))
    torch.testing.assert_close(losses.double(), exact, rtol=1e-6, atol=0)


# --- derivatives of every kind ------------------------------------------------------------------

TARGET = torch.tensor([0, 3, -100, 5])
#: Functions of logits of four rows and six columns that return losses or (losses, lse).
FORMS = {
    "mean": lambda x: fusedops.cross_entropy(x, TARGET),
    "smoothed": lambda x: fusedops.cross_entropy(x, TARGET, label_smoothing=0.2, reduction="none"),
    "weighted": lambda x: fusedops.cross_entropy(x, TARGET, weights(6), reduction="none"),
    "z loss": lambda x: fusedops.cross_entropy(x, TARGET, z_loss=0.3, reduction="sum"),
    "soft cap": lambda x: fusedops.cross_entropy(
        x, TARGET, softcap=2.0, label_smoothing=0.1, return_lse=True, reduction="none"
    ),
    "lse alone": lambda x: fusedops.cross_entropy(x, TARGET, return_lse=True)[1],
    "columns": lambda x: fusedops.cross_entropy(x.t(), TARGET, dim=0, z_loss=0.1),
    "lse of ignored rows": lambda x: ops.cross_entropy(
        x, TARGET, -100, 0.1, 0.7, 3.0, reads_ignored=True
    )[:2],
}


@pytest.mark.parametrize("name", FORMS)
def test_derivatives_of_first_and_second_order_are_those_of_differences(name):
    x = (logits(4, 6) / 3).requires_grad_()
    assert torch.autograd.gradcheck(FORMS[name], x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(FORMS[name], x, check_fwd_over_rev=True)


def of_torch(x):
    """The form "soft cap" as a number, in torch's functions."""
    losses, lse = reference.cross_entropy(x, TARGET, softcap=2.0, label_smoothing=0.1)
    return losses.sin().sum() + lse.sum()


def of_ours(x):
    losses, lse = FORMS["soft cap"](x)
    return losses.sin().sum() + lse.sum()


@pytest.mark.parametrize("of_second_order", [func.hessian, lambda f: func.jacrev(func.jacrev(f))])
def test_third_derivatives_are_those_of_torchs(of_second_order):
    x = logits(4, 6)
    found, expected = (func.jacrev(of_second_order(f))(x) for f in (of_ours, of_torch))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


# --- ops and autograd ---------------------------------------------------------------------------


def test_the_gradient_in_place_has_the_bits_of_the_one_that_is_not():
    x, grad = logits(3, 4, 20, dtype=torch.float32), torch.ones(())
    for rows in (x.clone(), x[:, ::2], x.mT):
        rows = rows.clone(memory_format=torch.preserve_format)
        of_rows = classes(*rows.shape[:-1], count=rows.shape[-1])
        results = ops.cross_entropy(rows, of_rows)
        grads = (grad.expand(of_rows.shape), None)
        expected = ops.cross_entropy_backward(rows, of_rows, *results, *grads)
        version = rows._version
        ops.cross_entropy_backward_(rows, of_rows, *results, *grads)
        assert same_bits(rows, expected) and rows._version > version


def test_autograd_keeps_the_logits_and_three_numbers_of_each_row():
    kept = []
    x = logits(40, 500, dtype=torch.bfloat16).requires_grad_()
    target = classes(40, count=500, ignored=None)
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        fusedops.cross_entropy(x, target, ignore_index=None, reduction="sum")
    sizes = Counter(t.numel() * t.element_size() for t in kept if t is not None)
    assert sizes == {x.numel() * 2: 1, 40 * 8: 1, 40 * 4: 3}


def test_a_weight_that_requires_grad_has_the_gradient_of_the_definition():
    x, target = logits(6, 5), classes(6, count=5)
    ours, exact = (weights(5).requires_grad_() for _ in range(2))
    fusedops.cross_entropy(x, target, ours, z_loss=0.2, reduction="sum").backward()
    losses, _ = reference.cross_entropy(x, target, exact, z_loss=0.2)
    losses.sum().backward()
    torch.testing.assert_close(ours.grad, exact.grad)


# --- compilers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole_it_trains_as_eager(dynamic):
    def loss(x, target, weight):
        plain, lse = fusedops.cross_entropy(x, target, z_loss=0.1, softcap=4.0, return_lse=True)
        return plain + fusedops.cross_entropy(x, target, weight) + lse.mean()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 7):
        x, target = logits(rows, 9, dtype=torch.float32), classes(rows, count=9)
        given = x.requires_grad_(), target, weights(9, torch.float32)
        found, expected = compiled(*given), loss(*given)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(value, x)[0] for value in (found, expected))
        torch.testing.assert_close(*gradients)


def test_it_is_exported_with_a_dynamic_batch():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loss = nn.CrossEntropyLoss(weights(9, torch.float32), z_loss=0.1)

        def forward(self, x, target):
            return self.loss(x, target)

    n = torch.export.Dim("n")
    x, target = logits(4, 9, dtype=torch.float32), classes(4, count=9)
    program = torch.export.export(Model(), (x, target), dynamic_shapes=({0: n}, {0: n}))
    assert "fusedops.cross_entropy.default" in {str(node.target) for node in program.graph.nodes}
    bigger = logits(11, 9, dtype=torch.float32), classes(11, count=9)
    torch.testing.assert_close(program.module()(*bigger), Model()(*bigger))


# --- the module, and torch's own samples --------------------------------------------------------


def test_the_module_takes_the_place_of_torchs():
    weight, target = weights(9, torch.float32), classes(4, 3, count=9)
    x = logits(4, 9, 3, dtype=torch.float32)
    options = {"ignore_index": 2, "reduction": "sum"}
    torchs = torch.nn.CrossEntropyLoss(weight, **options)
    ours = nn.CrossEntropyLoss(torch.ones(9), **options)
    ours.load_state_dict(torchs.state_dict())
    assert isinstance(ours, torch.nn.CrossEntropyLoss) and torch.equal(ours.weight, weight)
    target[target == -100] = 2
    torch.testing.assert_close(ours(x, target), torchs(x, target))
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1, softcap=3.0, z_loss=0.5)
    expected = fusedops.cross_entropy(x, target, label_smoothing=0.1, softcap=3.0, z_loss=0.5)
    assert torch.equal(smoothed(x, target), expected)
    assert "label_smoothing=0.1, z_loss=0.5, softcap=3.0" in repr(smoothed)


def test_pytorchs_own_samples_are_computed_or_refused_for_a_reason():
    (info,) = (info for info in op_db if info.name == "nn.functional.cross_entropy")
    outcomes = Counter()
    for sample in info.sample_inputs("cpu", torch.float32):
        target, *rest = sample.args
        try:
            actual = fusedops.cross_entropy(sample.input, target, *rest, **sample.kwargs)
        except RuntimeError as error:
            outcomes["probabilities" if "class probabilities" in str(error) else "weights"] += 1
            assert "use torch.nn.functional.cross_entropy" in str(error)
            continue
        exact = sample.transform(lambda v: v.double() if v.is_floating_point() else v)
        expected = F.cross_entropy(exact.input, exact.args[0], **exact.kwargs)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
        outcomes["computed"] += 1
    assert outcomes == {"computed": 11, "probabilities": 10}


def test_losses_of_rows_may_be_written_in_place_before_the_backward():
    """As torch's may: losses are masked and weighted so."""
    x, weights = logits(5, 7).requires_grad_(), torch.rand(5, dtype=torch.float64)
    target = torch.arange(5)
    losses = fusedops.cross_entropy(x, target, reduction="none")
    expected = F.cross_entropy(x, target, reduction="none")
    wanted = torch.autograd.grad((expected * weights).sum(), x)
    losses *= weights
    found = torch.autograd.grad(losses.sum(), x)
    assert relative_error(*found, *wanted) < 1e-13

    layer = torch.randn(7, 7, dtype=torch.float64)
    losses = fusedops.linear_cross_entropy(x, layer, target, reduction="none")
    losses[1:] = 0
    (found,) = torch.autograd.grad(losses.sum(), x)
    assert found[0].any() and not found[1:].any()
