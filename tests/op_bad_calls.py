"""Calls of every op with one argument made wrong, from the schemas, and their verdicts."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from norm_kinds import KINDS, kind_of
from torch._subclasses.fake_tensor import FakeTensorMode

from fusedops import reference
from fusedops.ops.registration import libraries

OPS = libraries.OPS
ops = torch.ops.fusedops

Arguments = dict[str, Any]


def schema(op: str) -> Any:
    return getattr(ops, op).default._schema


def base_of(op: str) -> str:
    """The op that a no-autograd, in-place or out variant belongs to."""
    return op.strip("_").removesuffix("_out").removesuffix("_output")


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- a valid call of every op -------------------------------------------------------------------


def valid_arguments(op: str) -> Arguments:
    base, x, y = base_of(op), randn(3, 5, seed=0), randn(3, 5, seed=1)
    softmax = (torch.log_softmax if base.startswith("log") else torch.softmax)(x, -1)
    mean, rstd = statistics_of(base, x, 1e-5)
    stacked = base.startswith("stack")
    mean, rstd = (torch.stack([s, s]) if stacked else s for s in (mean, rstd))
    values = {
        "input": x.clone(),
        "residual": y.clone(),
        "sum": x.clone(),
        "out": torch.zeros(3, 5),
        "grad_output": torch.stack([y, x]) if stacked else y.clone(),
        "grad_sum": randn(3, 5, seed=2),
        "output": softmax,
        "probabilities": softmax,
        "mask": randn(3, 5, seed=3) < 1,
        "bias": randn(5, seed=4),
        "weight": randn(5, seed=5),
        "mean": mean.float(),
        "rstd": rstd.float(),
        "inputs": [x.clone(), x + y],
        "weights": [randn(5, seed=6), randn(5, seed=7)],
        "biases": [randn(5, seed=8), randn(5, seed=9)],
        "seed": torch.tensor(7),
        "normalized_shape": [5],
        "output_mask": [True] * len(schema(op).returns),
        "dim": -1,
        "stack_dim": 0,
        "dtype": None,
        "input_dtype": torch.float32,
        "residual_dtype": torch.float32,
        "scale": 0.5,
        "causal": True,
        "mask_value": -1e4,
        "diagonal": 1,
        "lower_diagonal": -1,
        "start": torch.tensor([-2, 0, 2]),
        "end": torch.tensor([5, 3, 9], dtype=torch.int32),
        "sinks": randn(3, seed=10),
        "softcap": 1.5,
        "sink_probabilities": 1 - softmax[:, 1:].sum(-1),
        "zero_masked_rows": True,
        "p": 0.25,
        "eps": 1e-5,
        "weight_offset": 1.0,
        "rounds_normalized": False,
        "wants_sum": True,
        "relu": True,
    }
    if base == "softmax_apply":
        max = x.amax(-1, True)
        values |= {"max": max, "sum": (x - max).exp().sum(-1, True)}
    if base.startswith("cross_entropy"):
        values |= cross_entropy_arguments(x)
    if base.startswith("linear_cross_entropy"):
        values |= linear_cross_entropy_arguments(x)
    if base == "stack_layer_norm_backward":
        values["mean"], values["rstd"] = (
            torch.stack([statistics_of(base, t, 1e-5)[i] for t in values["inputs"]]).float()
            for i in (0, 1)
        )
    return {argument.name: values[argument.name] for argument in schema(op).arguments}


def cross_entropy_arguments(x: torch.Tensor) -> Arguments:
    """Those that other ops do not have; every ``ignore_index`` leaves classes that are columns."""
    settings = {"ignore_index": 1, "label_smoothing": 0.1, "reads_ignored": True}
    values = settings | {"target": torch.tensor([3, 1, 0])}
    scaled = {"input": x, "scale": 0.5, "softcap": 1.5}
    losses, lse, _ = cross_entropy_of(values | scaled)
    return values | {
        "losses": losses.float(),
        "lse": lse.float(),
        "lse_error": (lse - lse.float()).float(),
        "grad_losses": randn(3, seed=11),
        "grad_lse": randn(3, seed=12),
    }


def linear_cross_entropy_arguments(x: torch.Tensor) -> Arguments:
    """Those that other ops do not have, or have as other types."""
    head = {"input": x, "linear_weight": randn(5, 5, seed=13), "linear_bias": randn(5, seed=14)}
    values = cross_entropy_arguments(x) | head | {"softcap": 1.5}
    losses, lse, lse_error = linear_cross_entropy_losses_of(values)
    return values | {
        "output_mask": [True] * 3,
        "row_weights": randn(3, seed=15),
        "scale": torch.tensor(0.5),
        "z_loss": 0.25,
        "losses": losses.float(),
        "lse": lse.float(),
        "lse_error": lse_error.float(),
    }


# --- wrong values, by type ----------------------------------------------------------------------


class Subclass(torch.Tensor):
    pass


def strided(t: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(*t.shape, 2, dtype=t.dtype)
    wide[..., 0] = t
    return wide[..., 0]


def in_inference_mode(t: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return t.clone()


#: From the valid tensor.
TENSORS: dict[str, Callable] = {
    "None": lambda t: None,
    "a list of numbers": lambda t: [1.0, 2.0],
    "a string": lambda t: "input",
    "a number": lambda t: 3.0,
    "an array": lambda t: t.detach().numpy(),
    "int64": lambda t: t.long(),
    "uint8": lambda t: t.to(torch.uint8),
    "bool": lambda t: t > 0,
    "complex": lambda t: t.to(torch.complex64),
    "float16": lambda t: t.half(),
    "float64": lambda t: t.double(),
    "float8": lambda t: t.float().to(torch.float8_e4m3fn),
    "a younger dtype": lambda t: t.float().to(torch.float8_e8m0fnu),
    "a dimension more": lambda t: t[None],
    "a dimension less": lambda t: t.flatten()[0],
    "one row less": lambda t: t[:-1] if t.dim() else t.new_zeros(2),
    "one column less": lambda t: t[..., :-1] if t.dim() else t.new_zeros(0),
    "one column more": lambda t: torch.cat([t, t], -1) if t.dim() else t.expand(2, 2),
    "no rows": lambda t: t[:0] if t.dim() else t.new_zeros(0, 3),
    "rows of nothing": lambda t: t[..., :0] if t.dim() else t.new_zeros(3, 0),
    "strided": strided,
    "expanded": lambda t: t[..., :1].expand(t.shape) if t.dim() else t[None].expand(2)[0],
    "on meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "compressed rows": lambda t: torch.zeros(3, 5, dtype=t.dtype).to_sparse_csr(),
    "mkldnn": lambda t: t.float().to_mkldnn() if t.dim() else t.new_zeros(1).float().to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([torch.zeros(2, 5), torch.zeros(1, 5)]),
    "negated": lambda t: torch._neg_view(-t) if t.is_floating_point() else t,
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "a subclass": lambda t: t.clone().as_subclass(Subclass),
    "requires grad": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
    "of inference mode": in_inference_mode,
}
#: Operators that take nested tensors (tests/transforms/test_nested.py).
OF_NESTED = ("softmax", "log_softmax", "layer_norm", "std_norm", "rms_norm", "l2_norm")
#: Statistics may have any values, but with these the formulas divide by zero.
NOT_OF_STATISTICS = {"expanded", "zeros without memory"}
LISTS: dict[str, Callable] = {
    "None": lambda ts: None,
    "a tensor": lambda ts: ts[0],
    "a number": lambda ts: 3,
    "empty": lambda ts: [],
    "one": lambda ts: ts[:1],
    "many": lambda ts: ts * 20,
    "with None": lambda ts: [ts[0], None],
    "with a string": lambda ts: [ts[0], "a"],
    "of two shapes": lambda ts: [ts[0], ts[1][:-1]],
    "of two dtypes": lambda ts: [ts[0], ts[1].double()],
    "of two devices": lambda ts: [ts[0], ts[1].to("meta")],
    "of integers": lambda ts: [t.long() for t in ts],
    "of float64": lambda ts: [t.double() for t in ts],
    "with a sparse one": lambda ts: [ts[0], ts[1].to_sparse()],
    "of one twice": lambda ts: [ts[0], ts[0]],
    "of strided ones": lambda ts: [strided(t) for t in ts],
    "of one dimension more": lambda ts: [t[None] for t in ts],
    "of nothing": lambda ts: [t[..., :0] for t in ts],
}
INTEGERS = [7, -7, 2**31, 2**63 - 1, -(2**63), 2**63, 0.5, math.nan, "a", None, [1], 1j, True]
INTEGERS += [torch.tensor(1), torch.tensor([1, 2])]
SIZES = [None, 5, [], [5.0], ["a"], [4], [3, 5], [1, 3, 5], [0], [-5], [2**40], [2**63 - 1, 5]]
SIZES += [[2**63], [[5]], [True], (5,), torch.Size([5])]
FLOATS = [math.nan, math.inf, -math.inf, -1.0, 1.5, 1e300, -1e300, 0.0, 2, True, "a", None, [1.0]]
FLOATS += [1j, torch.tensor(0.5), torch.tensor([0.1, 0.2])]
BOOLS = [True, False, 2, 1.5, "a", None, [True]]
MASKS = [[], [True], [False] * 2, [True] * 3, [True] * 4, [True] * 5, [True] * 1000, True, None]
MASKS += [[1, 0, 1], ["a"] * 3, [None] * 3]
DTYPES = [torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64, None, "float32"]
DTYPES += [torch.float8_e4m3fn, torch.uint16, torch.complex32, 3, float]

BY_TYPE = {
    "int": INTEGERS,
    "SymInt": INTEGERS,
    "List[int]": SIZES,
    "List[SymInt]": SIZES,
    "float": FLOATS,
    "bool": BOOLS,
    "List[bool]": MASKS,
}


Makers = dict[str, Callable[[Any], Any]]


@functools.cache
def wrong_values(op: str, name: str) -> Makers:
    """Wrong values of an argument, each made from a valid one."""
    (argument,) = (argument for argument in schema(op).arguments if argument.name == name)
    kind = re.sub(r"Optional\[(.*)\]", r"\1", str(argument.type))
    if kind not in ("Tensor", "List[Tensor]"):
        # The schema's type of a ScalarType is int.
        values = {repr(v): v for v in (DTYPES if name.endswith("dtype") else BY_TYPE[kind])}
        if op.strip("_") == "std_norm_backward" and name == "eps":  # no rstd is above 1 / eps
            values = {text: v for text, v in values.items() if text not in ("1.5", "2", "True")}
        if "cross_entropy_backward" in op and name == "scale":  # infinity times a slope of 0
            values = {text: v for text, v in values.items() if "e+300" not in text}
        return {text: lambda valid, value=value: value for text, value in values.items()}
    left_out = NOT_OF_STATISTICS if name in ("mean", "rstd", "max", "sum") else set()
    if name == "input" and base_of(op) in OF_NESTED and not op.endswith(("_", "_out")):
        left_out = {"nested"}
    makers = TENSORS if kind == "Tensor" else LISTS
    return {value: make for value, make in makers.items() if value not in left_out}


# --- what they compute, in float64 --------------------------------------------------------------


def statistics_of(base: str, x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """mean and rstd."""
    x, kind = x.double(), kind_of(base)
    mean = x.mean(-1, True) if kind.has_mean else torch.zeros_like(x[..., :1])
    squares = (x - mean).square().sum(-1, True).detach().numpy()
    return mean, 1 / torch.from_numpy(kind.scale(squares, x.shape[-1], eps))


def rounded(number: float, dtype: torch.dtype) -> float:
    """The number as the kernels take it."""
    return number if dtype == torch.float64 else torch.tensor(number).float().item()


def flat(t: torch.Tensor, a: Arguments) -> torch.Tensor:
    """The tensor with its normalized dimensions as one."""
    return t.double().flatten(t.dim() - len(a["normalized_shape"]))


philox = functools.cache(reference.philox)


def multiplier(a: Arguments, like: torch.Tensor) -> torch.Tensor:
    """The multiplier of each element under dropout: 0, or 1 / (1 - p)."""
    p, seed = float(a["p"]), a["seed"]
    if seed is None or p == 0 or like.numel() == 0:
        return torch.ones(like.shape, dtype=torch.float64)
    cols = like.shape[-1]
    kept = philox(int(seed), like.numel() // cols, cols).view(like.shape)
    kept = (kept >= min(round(p * 2**32), 2**32 - 1)).double()
    return kept / (1 - p) if p < 1 else 0 * kept


def softmax_of(a: Arguments, function: Callable = torch.softmax) -> torch.Tensor:
    x = a["input"].to(a.get("dtype") or a["input"].dtype)
    return function(x.double(), int(a["dim"]))


log_softmax_of = functools.partial(softmax_of, function=torch.log_softmax)


def softmax_backward_of(a: Arguments) -> torch.Tensor:
    g, y = a["grad_output"].double(), a["output"].double()
    return y * (g - (g * y).sum(int(a["dim"]), True))


def log_softmax_backward_of(a: Arguments) -> torch.Tensor:
    g, y = a["grad_output"].double(), a["output"].double()
    return g - y.exp() * g.sum(int(a["dim"]), True)


def softmax_stats_of(a: Arguments) -> tuple:
    x, dim = a["input"].double(), int(a["dim"])
    max = x.amax(dim, True)
    return max, (x - max).exp().sum(dim, True)


def softmax_apply_of(a: Arguments) -> torch.Tensor:
    return (a["input"].double() - a["max"].double()).exp() / a["sum"].double()


def class_logits_of(a: Arguments) -> tuple[torch.Tensor, torch.Tensor | float]:
    """The logits, and their derivative by the input."""
    dtype = a["input"].dtype
    scale = rounded(float(a["scale"]), dtype)
    x = a["input"].double() * scale
    if a["softcap"] is None:
        return x, scale
    cap = rounded(float(a["softcap"]), dtype)
    return cap * torch.tanh(x / cap), scale / torch.cosh(x / cap).square()


def classes_of(a: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of each column in its row's loss, and which rows are not ignored."""
    cols, e = a["input"].shape[-1], float(a["label_smoothing"])
    target = a["target"].long()
    share = (target[..., None] == torch.arange(cols)).double() * (1 - e) + e / cols
    ignored = None if a["ignore_index"] is None else int(a["ignore_index"])
    return share, torch.tensor([t != ignored for t in target.flatten().tolist()]).view(target.shape)


def cross_entropy_of(a: Arguments) -> tuple:
    z, (share, counts) = class_logits_of(a)[0], classes_of(a)
    lse = z.logsumexp(-1)
    losses = (share * (lse[..., None] - z)).sum(-1)
    lse = lse if a["reads_ignored"] else torch.where(counts, lse, 0.0)
    return torch.where(counts, losses, 0.0), lse, lse - lse.to(statistics_dtype(a["input"]))


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def cross_entropy_backward_of(a: Arguments) -> torch.Tensor:
    (z, slope), (share, counts) = class_logits_of(a), classes_of(a)
    zeros = torch.zeros(a["lse"].shape, dtype=torch.float64)
    g, h = (zeros if a[n] is None else a[n].double() for n in ("grad_losses", "grad_lse"))
    g, h = torch.where(counts, g, 0.0)[..., None], h[..., None]
    p = (z - a["lse"].double()[..., None] - a["lse_error"].double()[..., None]).exp()
    dz = (g + h) * p - g * share
    if float(a["label_smoothing"]) == 0:
        of_class = g * torch.expm1(-a["losses"].double())[..., None] + h * p
        dz = torch.where(share == 1, of_class, dz)
    return torch.where((g == 0) & (h == 0), 0.0, slope * dz)


def of_linear(a: Arguments) -> Arguments:
    """The arguments of cross_entropy's ops for the results of the linear layer."""
    z = a["input"].double() @ a["linear_weight"].double().T
    z = z if a["linear_bias"] is None else z + a["linear_bias"].double()
    return a | {"input": z, "scale": 1.0, "reads_ignored": False}


def linear_cross_entropy_losses_of(a: Arguments) -> tuple:
    return cross_entropy_of(of_linear(a))


def linear_cross_entropy_losses_backward_of(a: Arguments) -> tuple:
    given = (
        a
        if a["grad_lse"] is None
        else a | {"grad_lse": a["grad_lse"] * classes_of(of_linear(a))[1]}
    )
    dz = cross_entropy_backward_of(of_linear(given))
    return dz @ a["linear_weight"].double(), dz.T @ a["input"].double(), dz.sum(0)


def linear_cross_entropy_of(a: Arguments) -> torch.Tensor:
    losses, lse, _ = linear_cross_entropy_losses_of(a)
    weights = 1 if a["row_weights"] is None else a["row_weights"].double()
    scale = 1 if a["scale"] is None else a["scale"].double()
    return scale * (weights * losses + float(a["z_loss"]) * lse.square()).sum()


def linear_cross_entropy_gradients_of(a: Arguments) -> tuple:
    losses, lse, lse_error = linear_cross_entropy_losses_of(a)
    weights = torch.ones_like(lse) if a["row_weights"] is None else a["row_weights"].double()
    scale = 1 if a["scale"] is None else a["scale"].double()
    grads = {"grad_losses": scale * weights, "grad_lse": 2 * scale * float(a["z_loss"]) * lse}
    results = {"losses": losses, "lse": lse, "lse_error": lse_error}
    of_rows = linear_cross_entropy_losses_backward_of(a | results | grads)
    return linear_cross_entropy_of(a), *of_rows


def visible_of(a: Arguments, like: torch.Tensor) -> torch.Tensor:
    """The columns that neither the interval nor a bool mask hides."""
    visible = torch.ones(like.shape, dtype=torch.bool)
    column = torch.arange(like.shape[-1])
    if a["causal"]:
        visible = visible.tril(min(max(int(a["diagonal"]), -100), 100))
    if a["lower_diagonal"] is not None:
        visible = visible.triu(min(max(int(a["lower_diagonal"]), -100), 100))
    if a["start"] is not None:
        visible = visible & (column >= a["start"][..., None])
    if a["end"] is not None:
        visible = visible & (column < a["end"][..., None])
    mask = a["mask"]
    return visible if mask is None or mask.dtype != torch.bool else visible & mask


def masked_softmax_of(a: Arguments) -> torch.Tensor:
    x = a["input"]
    computed = a.get("dtype") or (a["out"].dtype if "out" in a else x.dtype)
    value = -math.inf if a["mask_value"] is None else rounded(float(a["mask_value"]), computed)
    scores = x.to(computed).double() * rounded(float(a["scale"]), computed)
    if a["softcap"] is not None:
        cap = rounded(float(a["softcap"]), computed)
        scores = torch.tanh(scores / cap) * cap
    for added in (a["bias"], a["mask"]):
        if added is not None and added.dtype != torch.bool:
            scores = scores + added.double()
    visible = visible_of(a, x)
    scores = scores.masked_fill(~visible, value)
    if a["sinks"] is not None:
        sinks = a["sinks"].double()[..., None].expand(*scores.shape[:-1], 1)
        result = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        result = torch.softmax(scores, -1)
    hidden = ~(visible & (scores != -math.inf)).any(-1, True)
    return result.masked_fill(hidden, 0) if a["zero_masked_rows"] else result


def masked_softmax_dropout_of(a: Arguments) -> tuple:
    y = masked_softmax_of(a)
    return y * multiplier(a, y), y


def masked_softmax_sinks_of(a: Arguments) -> tuple:
    y = masked_softmax_of(a)
    dropped = a["seed"] is not None
    return y * multiplier(a, y) if dropped else y, y if dropped else y.new_empty(0), 1 - y.sum(-1)


def masked_softmax_sinks_backward_of(a: Arguments) -> tuple:
    g, y = (
        a["grad_output"].double() * multiplier(a, a["probabilities"]),
        a["probabilities"].double(),
    )
    to_input = masked_softmax_backward_of(a)
    return to_input, -a["sink_probabilities"].double() * (g * y).sum(-1)


def masked_softmax_backward_of(a: Arguments) -> torch.Tensor:
    g, y = a["grad_output"].double(), a["probabilities"].double()
    if "p" in a:
        g = g * multiplier(a, y)
    scale = rounded(float(a["scale"]), a["probabilities"].dtype)
    return torch.where(visible_of(a, y), scale * y * (g - (g * y).sum(-1, True)), 0.0)


def dropout_of(a: Arguments) -> torch.Tensor:
    x = a["input"].double()
    return (x.relu() if a["relu"] else x) * multiplier(a, torch.atleast_1d(x)).view(x.shape)


def factor_of(a: Arguments) -> torch.Tensor | float:
    if a.get("weight") is None:
        return 1.0
    # Computed in float32 unless all is float64: a larger offset is infinite.
    return a["weight"].double().flatten() + rounded(float(a.get("weight_offset", 0.0)), a["dtype"])


def norm_of(base: str, a: Arguments, x: torch.Tensor) -> tuple:
    """Output, mean and rstd of flat rows."""
    rows = flat(x, a)
    mean, rstd = statistics_of(base, rows, float(a["eps"]))
    n = (rows - mean) * rstd
    bias = 0.0 if a.get("bias") is None else a["bias"].double().flatten()
    return n * factor_of(a) + bias, mean, rstd


def norm_forward_of(base: str, a: Arguments) -> tuple:
    a = {**a, "dtype": a["input"].dtype}
    if not base.startswith("add"):
        output, *statistics = norm_of(base, a, a["input"])
        return (output, *statistics) if kind_of(base).has_mean else (output, statistics[1])
    a["dtype"] = torch.promote_types(a["input"].dtype, a["residual"].dtype)
    dropped = a["input"].double() * multiplier(a, flat(a["input"], a)).view(a["input"].shape)
    total = (dropped + a["residual"].double()).to(a["dtype"])
    output, mean, rstd = norm_of(base, a, total)
    return (output, total, mean, rstd) if kind_of(base).has_mean else (output, total, rstd)


def norm_backward_of(base: str, a: Arguments) -> tuple:
    added, kind = base.startswith("add"), kind_of(base)
    x = a["sum"] if added else a["input"]
    a = {**a, "dtype": x.dtype}
    rows, dy, rstd = flat(x, a), flat(a["grad_output"], a), a["rstd"].double().view(-1, 1)
    rows, dy = rows.reshape(-1, rows.shape[-1]), dy.reshape(-1, rows.shape[-1])
    n = (rows - (a["mean"].double().view(-1, 1) if kind.has_mean else 0.0)) * rstd
    g = dy * factor_of(a)
    factor = torch.from_numpy(kind.factor((1 / rstd).detach().numpy(), float(a.get("eps", 0.0))))
    along = factor * (g * n).sum(-1, True) / kind.count(rows.shape[-1])
    to_x = rstd * (g - (g.mean(-1, True) if kind.has_mean else 0.0) - n * along)
    to_parameters = [(dy * n).sum(0)] + ([dy.sum(0)] if kind.has_mean else [])
    if not added:
        return to_x, *to_parameters
    if a["grad_sum"] is not None:
        to_x = to_x + flat(a["grad_sum"], a).reshape(to_x.shape)
    if float(a["p"]) == 0:
        return to_x, None, *to_parameters
    return to_x * multiplier(a, to_x), to_x, *to_parameters


def spatial_norm_of(base: str, a: Arguments) -> tuple:
    """A norm over `dim`: that of the last dimension, once `dim` is the last."""
    dim = int(a["dim"])
    moved = {
        name: a[name].movedim(dim, -1)
        for name in ("input", "grad_output", "mean", "rstd")
        if name in a
    }
    a = a | moved | {"normalized_shape": moved["input"].shape[-1:]}
    of = norm_backward_of if base.endswith("_backward") else norm_forward_of
    first, *others = of(base, a)
    return first.view(moved["input"].shape).movedim(-1, dim), *others


def stacked_norms(a: Arguments) -> list[Arguments]:
    """The arguments of each norm of a stack."""
    count = len(a["inputs"])
    weights, biases = (list(a[name]) or [None] * count for name in ("weights", "biases"))
    names = ("input", "weight", "bias")
    return [
        a | dict(zip(names, own, strict=True))
        for own in zip(a["inputs"], weights, biases, strict=True)
    ]


def stack_layer_norm_of(a: Arguments) -> tuple:
    found = [norm_forward_of("layer_norm", own) for own in stacked_norms(a)]
    output, mean, rstd = zip(*found, strict=True)
    shaped = [y.view(x.shape) for x, y in zip(a["inputs"], output, strict=True)]
    return torch.stack(shaped, int(a["stack_dim"])), torch.stack(mean), torch.stack(rstd)


def stack_layer_norm_backward_of(a: Arguments) -> tuple:
    grads = a["grad_output"].unbind(int(a["stack_dim"]))
    each = [
        norm_backward_of(
            "layer_norm_backward", own | {"grad_output": grad, "mean": mean, "rstd": rstd}
        )
        for own, grad, mean, rstd in zip(stacked_norms(a), grads, a["mean"], a["rstd"], strict=True)
    ]
    return tuple(map(torch.stack, zip(*each, strict=True)))


def stacked(function: Callable, a: Arguments) -> torch.Tensor:
    return torch.stack([function({"input": x, **a}) for x in a["inputs"]], int(a["stack_dim"]))


stack_softmax_of = functools.partial(stacked, softmax_of)
stack_log_softmax_of = functools.partial(stacked, log_softmax_of)
masked_softmax_dropout_backward_of = masked_softmax_backward_of

#: The functions above that have the name of an op, with "_of" behind it.
REFERENCES: dict[str, Callable] = {
    op: globals()[f"{op}_of"] for op in map(base_of, OPS) if f"{op}_of" in globals()
}
for _base in (*(f"{kind}_norm" for kind in KINDS), "add_layer_norm", "add_rms_norm"):
    REFERENCES[_base] = lambda a, base=_base: norm_forward_of(base, a)
    REFERENCES[f"{_base}_backward"] = lambda a, base=_base: norm_backward_of(base, a)
for _base in ("spatial_layer_norm", "spatial_rms_norm"):
    for _op in (_base, f"{_base}_backward"):
        REFERENCES[_op] = lambda a, op=_op: spatial_norm_of(op, a)


# --- verdicts -----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A tensor in memory of its own, for the reference and to be given a second time."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [plain(v) for v in value]
    if not isinstance(value, torch.Tensor) or value.is_meta or value.layout != torch.strided:
        return value
    if value.is_quantized or value.is_nested:
        return value
    value = value.detach().resolve_neg().as_subclass(torch.Tensor)
    return torch.zeros_like(value) + value if value._is_zerotensor() else value.clone()


def results_of(op: str, given: Arguments, returned: Any) -> list[torch.Tensor]:
    """The results, also where they were written into an argument."""
    written = [a.name for a in schema(op).arguments if a.alias_info and a.alias_info.is_write]
    return [given[written[0]]] if written else flattened(returned)


def why_wrong(op: str, given: Arguments, found: list[torch.Tensor], before: Arguments) -> str:
    """The difference from the reference; empty where there is none."""
    expected = REFERENCES[base_of(op)](before)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    leaves_out = ("_masked_softmax_dropout", "_add_layer_norm", "_add_rms_norm")
    if op in leaves_out or op.endswith("_output"):
        expected = expected[: len(found)]
    if len(found) != len(expected):
        return f"{len(found)} results, wanted {len(expected)}"
    given_tensors = [t for v in before.values() for t in flattened(v)]
    narrow = any(t.dtype == torch.float16 for t in [*given_tensors, *found])
    tolerance = 2e-2 if narrow else 2e-4
    for index, (ours, right) in enumerate(zip(found, expected, strict=True)):
        if ours.dim() == 1 and ours.numel() == 0:  # not wanted
            continue
        if ours.is_meta:
            return "a meta tensor"
        ours, right = ours.detach().double().flatten(), right.double().flatten()
        if ours.shape != right.shape:
            return f"result {index} has {ours.numel()} elements, wanted {right.numel()}"
        if not torch.allclose(ours, right, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"result {index} is off by {(ours - right).abs().max():g}"
    return ""


def complaint_about(op: str, error: Exception) -> str:
    """What is wrong with an error; empty if its type fits and it names the op and an argument."""
    text = str(error)
    if not isinstance(error, (RuntimeError, TypeError, ValueError)):
        return f"{type(error).__name__}: {text}"
    if base_of(op).removesuffix("_gradients") not in text:
        return f"names no op: {text}"
    names = "|".join(argument.name for argument in schema(op).arguments)
    if not re.search(rf"\b({names})\b", text):
        return f"names no argument: {text}"
    return f"an internal text: {text}" if re.search(r"\.(h|cpp):?\d*\b", text) else ""


def flattened(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


def is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return not isinstance(value, torch.Tensor) or (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_nested or value.is_neg() or value.is_inference())
        and not (value._is_zerotensor() or value.requires_grad or value.is_meta)
    )


@functools.cache
def originals(op: str) -> Arguments:
    """Valid arguments that no call is given, as it may write into them."""
    return valid_arguments(op)


def faked(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [faked(mode, v) for v in value]
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


@functools.cache
def fake_originals(op: str) -> tuple[FakeTensorMode, Arguments]:
    mode = FakeTensorMode()
    return mode, {name: faked(mode, value) for name, value in originals(op).items()}


def fake_outcome(op: str, name: str, wrong: Any) -> Any:
    """The message, or (dtype, shape, stride) of every result."""
    mode, fakes = fake_originals(op)
    holds_tensors = bool(flattened(originals(op)[name]))
    fakes = fakes | {name: faked(mode, wrong) if holds_tensors else wrong}
    with mode:
        try:
            returned = getattr(ops, op).default(*fakes.values())
        except RuntimeError as error:
            return str(error)
        return [(t.dtype, t.shape, t.stride()) for t in results_of(op, fakes, returned)]


class Row(NamedTuple):
    op: str
    argument: str
    value: str

    def __str__(self) -> str:
        return f"{self.op}: {self.argument} <- {self.value}"

    def has_fake(self, wrong: Any) -> bool:
        """Whether fake tensors can make the call: they have no value to be taken for a number."""
        without = self.value == "a younger dtype" or self.value.startswith("tensor(")
        return is_plain(wrong) and not without

    def problem(self) -> str:
        """What is wrong with the outcome; empty where it is right."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make = wrong_values(self.op, self.argument)[self.value]
            return judge(self, make(plain(originals(self.op)[self.argument])))


def rows(op: str) -> list[Row]:
    names = [argument.name for argument in schema(op).arguments]
    return [Row(op, name, value) for name in names for value in wrong_values(op, name)]


def judge(row: Row, wrong: Any) -> str:
    op, name = row.op, row.argument
    given = {n: plain(value) for n, value in originals(op).items()} | {name: wrong}
    before = originals(op) | {name: plain(wrong)}
    fake = fake_outcome(op, name, wrong) if (compares_fake := row.has_fake(wrong)) else None
    try:
        returned = getattr(ops, op).default(*given.values())
    except Exception as error:
        complaint = complaint_about(op, error)
        if compares_fake and not complaint and str(error).startswith(f"{base_of(op)}"):
            complaint = "" if fake == str(error) else f"real: {error}; fake: {fake}"
        return complaint or what_was_written(given, before)
    found = results_of(op, given, returned)
    if any(t.is_meta for t in found):
        # A seed may stay where it is, as a meta tensor needs no random numbers.
        others = [v for n, v in given.items() if n != "seed"]
        stay = [t for v in others for t in flattened(v) if not t.is_meta]
        return "a result on meta beside tensors that are not" if stay else ""
    if compares_fake and fake != [(t.dtype, t.shape, t.stride()) for t in found]:
        return f"the fake kernel gives {fake}"
    return why_wrong(op, given, found, before)


def what_was_written(given: Arguments, before: Arguments) -> str:
    """What a refused call did to its arguments; empty where it left them as they were."""
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and is_plain(value):
            if not torch.equal(value, before[name]):
                return f"refused, but {name} is written"
    return ""
