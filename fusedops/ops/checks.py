"""Checks the arguments of fake kernels as ``csrc/ops`` does: in its order, with its messages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

#: The dtypes that kernels take.
FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_WANTED_DTYPE = "wanted torch.float32, torch.bfloat16, torch.float16 or torch.float64"
_MOST_COLS = 2**31 - 1

MaybeTensor = torch.Tensor | None
#: The name and the value of the argument that another one is compared with.
Like = tuple[str, torch.Tensor]


def check(ok: bool, message: str) -> None:
    if not ok:
        raise RuntimeError(message)


def check_given(op: str, name: str, tensor: MaybeTensor) -> torch.Tensor:
    """Returns ``tensor``. Refuses None, which the dispatcher accepts beside another tensor."""
    if tensor is None:
        raise RuntimeError(f"{op}: {name} is None, wanted a tensor")
    return tensor


def check_plain(op: str, name: str, tensor: torch.Tensor) -> None:
    """Refuses nested tensors, strided and jagged."""
    check(
        not tensor.is_nested,
        f"{op}: {name} is a nested tensor, wanted a plain one; make it with "
        ".to_padded_tensor(padding)",
    )


def check_dtype(op: str, name: str, dtype: torch.dtype | None, fix: str = "convert it") -> None:
    check(dtype in FLOATING, f"{op}: {name} is {dtype}, {_WANTED_DTYPE}; {fix}")


def check_dtype_of(op: str, name: str, tensor: MaybeTensor) -> None:
    check_dtype(op, name, None if tensor is None else tensor.dtype)


def result_dtype(op: str, input: MaybeTensor, dtype: torch.dtype | None) -> torch.dtype:
    """Returns ``dtype``, or ``input``'s where ``dtype`` is None; raises if it is not floating."""
    tensor = check_given(op, "input", input)
    name, result = ("input", tensor.dtype) if dtype is None else ("dtype", dtype)
    check_dtype(op, name, result, "convert it, or pass dtype=")
    return result


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of statistics for an input of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the dtype that the kernels compute in."""
    return tensor.to(statistics_dtype(tensor.dtype))


def check_cols(op: str, cols: int | torch.SymInt) -> None:
    # A symbolic size is not compared: that would add a guard, which restricts the sizes that a
    # compiled graph accepts.
    if isinstance(cols, int) and cols > _MOST_COLS:
        raise RuntimeError(f"{op}: a row has {cols} elements; at most 2^31 - 1 are supported")


def check_dim(op: str, input: torch.Tensor, dim: int) -> None:
    """Checks that ``dim`` is a dimension of ``input``, and not longer than the kernels support."""
    bound = max(input.dim(), 1)
    if not -bound <= dim < bound:  # check() would build the message in each call, for 1 us
        raise RuntimeError(
            f"{op}: dim is {dim}, wanted a value in [{-bound}, {bound - 1}] "
            f"for an input of shape {list(input.shape)}"
        )
    check_cols(op, input.shape[dim] if input.dim() > 0 else 1)


def check_eps(op: str, eps: float) -> None:
    check(eps >= 0, f"{op}: eps is {eps:g}, wanted a value >= 0")


def check_softcap(op: str, softcap: float | None, computed: torch.dtype) -> None:
    """Checks that a soft cap, unless it is None, and its reciprocal are normal numbers: of float64
    if ``computed``, the dtype of the scores, is float64, and otherwise of float32."""
    if softcap is None:
        return
    least = torch.finfo(statistics_dtype(computed)).smallest_normal
    check(
        least <= softcap <= 1 / least,
        f"{op}: softcap is {softcap:g}, wanted a finite number above 0, for {computed} from "
        f"{least:g} to {1 / least:g}; leave it out for no cap",
    )


def check_output_mask(op: str, mask: Sequence[bool], gradients: int) -> None:
    check(
        len(mask) == gradients,
        f"{op}: output_mask has {len(mask)} entries, wanted {gradients}, one for each gradient",
    )


def check_device(op: str, name: str, tensor: torch.Tensor, like: Like) -> None:
    """Checks that ``tensor`` is on the device of ``like``."""
    like_name, other = like
    check(
        tensor.device == other.device,
        f"{op}: {name} is on {tensor.device}, wanted {other.device} as {like_name} is; "
        f"move it with .to({like_name}.device)",
    )


def check_tensor(
    op: str,
    name: str,
    tensor: MaybeTensor,
    dtype: torch.dtype,
    shape: Sequence[int],
    like: Like,
    because: str,
) -> None:
    """Checks that ``tensor`` has this dtype and shape, and is on the device of ``like``."""
    tensor = check_given(op, name, tensor)
    wanted = list(shape)
    check(
        tensor.dtype == dtype and list(tensor.shape) == wanted,
        f"{op}: {name} is {tensor.dtype} of shape {list(tensor.shape)}, wanted {dtype} of shape "
        f"{wanted} as {because}",
    )
    check_device(op, name, tensor, like)


def check_like(op: str, name: str, tensor: MaybeTensor, like: Like) -> None:
    like_name, other = like
    check_tensor(op, name, tensor, other.dtype, other.shape, like, f"{like_name} is")


def check_term(op: str, name: str, tensor: MaybeTensor, like: Like) -> None:
    """Checks that ``tensor``, which is added to ``like``, has the same shape and device, and any
    floating dtype."""
    like_name, other = like
    check_dtype_of(op, name, tensor)
    tensor = check_given(op, name, tensor)
    check(
        tensor.shape == other.shape,
        f"{op}: {name} has shape {list(tensor.shape)}, wanted {like_name}'s, {list(other.shape)}; "
        "expand one of them with .expand()",
    )
    check_device(op, name, tensor, like)


def check_term_dtypes(
    op: str, sum: MaybeTensor, input: torch.dtype | None, residual: torch.dtype | None
) -> tuple[torch.dtype, torch.dtype]:
    """Returns the dtypes of the input and the residual whose sum is ``sum``, with sum's dtype in
    place of None. Raises unless torch promotes the two to sum's dtype."""
    check_dtype_of(op, "sum", sum)
    dtype = check_given(op, "sum", sum).dtype
    input, residual = input or dtype, residual or dtype
    check_dtype(op, "input_dtype", input)
    check_dtype(op, "residual_dtype", residual)
    check(
        torch.promote_types(input, residual) == dtype,
        f"{op}: input_dtype is {input} and residual_dtype {residual}, wanted those whose sum is "
        f"{dtype} as sum is",
    )
    return input, residual


def check_statistic(
    op: str,
    name: str,
    tensor: MaybeTensor,
    like: Like,
    shape: Sequence[int],
    source: str = "the forward op",
) -> None:
    """Checks that ``tensor`` has this shape, and the dtype and device of the statistics that the op
    ``source`` returns for ``like``."""
    dtype = statistics_dtype(like[1].dtype)
    check_tensor(op, name, tensor, dtype, shape, like, f"{source} returns it")


def check_probability(op: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"{op}: p is {p:g}, wanted a probability in [0, 1]")


def check_seed(op: str, p: float, seed: MaybeTensor, like: Like) -> None:
    """Checks that ``p`` is a probability and ``seed`` one int64 on the device of ``like``."""
    check_probability(op, p)
    check_given(op, *like)
    seed = check_given(op, "seed", seed)
    check(
        seed.dtype == torch.int64 and seed.numel() == 1,
        f"{op}: seed is {seed.dtype} of shape {list(seed.shape)}, wanted one torch.int64; "
        "make it with torch.randint",
    )
    if like[1].device.type != "meta":  # a meta tensor needs no random numbers: any device will do
        check_device(op, "seed", seed, like)


def check_optional_seed(op: str, p: float, seed: MaybeTensor, like: Like) -> None:
    """Checks ``p`` and ``seed``; without a seed ``p`` must be 0."""
    if seed is not None:
        check_seed(op, p, seed, like)
        return
    check(p == 0, f"{op}: p is {p:g} without a seed; make one with torch.randint, one int64")


def check_distinct(op: str, name: str, written: torch.Tensor) -> None:
    """Checks that no two elements share memory: each stride must exceed the span of all dimensions
    with smaller strides. Symbolic strides are not checked, as in :func:`check_cols`."""
    dims = [(s, n) for s, n in zip(written.stride(), written.shape, strict=True)]
    if not all(isinstance(number, int) for dim in dims for number in dim):
        return
    end = 1  # offset after the last element that the dimensions so far span
    for stride, size in sorted((stride, size) for stride, size in dims if size > 1):
        check(
            stride >= end or written.numel() == 0,
            f"{op}: elements of {name} share memory (it is expanded or overlaps itself); wanted "
            "one place for each element, as .clone() makes it",
        )
        end += stride * (size - 1)


def check_out(op: str, out: torch.Tensor, input: torch.Tensor) -> None:
    """Checks that a result of ``input``'s shape can be written into ``out``."""
    check_dtype_of(op, "out", out)
    check(
        out.shape == input.shape,
        f"{op}: out has shape {list(out.shape)}, wanted input's, {list(input.shape)}; "
        "make it with torch.empty_like(input)",
    )
    check_device(op, "out", out, ("input", input))
    check_distinct(op, "out", out)


def check_norm_shape(op: str, like: Like, normalized_shape: Sequence[int]) -> None:
    """Checks that ``normalized_shape`` is the shape of the last dimensions of ``like``."""
    name, input = like
    wanted = list(normalized_shape)
    check(len(wanted) > 0, f"{op}: normalized_shape is empty, wanted at least one dimension")
    check(
        len(wanted) <= input.dim() and list(input.shape[-len(wanted) :]) == wanted,
        f"{op}: normalized_shape is {wanted}, wanted the last dimensions of {name}, "
        f"whose shape is {list(input.shape)}",
    )
    check_cols(op, math.prod(wanted))


def check_norm_parameter(
    op: str, name: str, parameter: MaybeTensor, like: Like, shape: Sequence[int], what: str = ""
) -> None:
    """Checks that ``parameter`` is None, or has ``shape``, a floating dtype and the device of
    ``like``. Errors call the shape ``what``, by default normalized_shape."""
    if parameter is None:
        return
    check(
        list(parameter.shape) == list(shape),
        f"{op}: {name} has shape {list(parameter.shape)}, wanted "
        f"{what or f'normalized_shape, {list(shape)}'}",
    )
    check_device(op, name, parameter, like)
    check_dtype(op, name, parameter.dtype)


def statistics_shape(input: torch.Tensor, dim: int) -> list[int]:
    """Returns the shape of statistics of the rows along ``dim``, whose size becomes 1."""
    shape = list(input.shape)
    if shape:
        shape[dim] = 1
    return shape


def norm_statistics_shape(input: torch.Tensor, normalized_shape: Sequence[int]) -> list[int]:
    rows = input.shape[: input.dim() - len(normalized_shape)]
    return [*rows, *(1 for _ in normalized_shape)]
