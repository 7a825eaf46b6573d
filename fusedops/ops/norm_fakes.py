"""Fake kernels of the norms: they check the arguments and return empty results of the right shapes
and dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedops.ops import checks
from fusedops.ops.norm_kinds import NormOp

Named = dict[str, Any]


# --- shapes -------------------------------------------------------------------------------------


def _size(input: torch.Tensor, dim: int) -> int:
    return input.shape[dim] if input.dim() > 0 else 1


def _parameter_shape(input: torch.Tensor, named: Named) -> Sequence[int]:
    return [_size(input, named["dim"])] if "dim" in named else named["normalized_shape"]


def _statistics_shape(input: torch.Tensor, named: Named) -> list[int]:
    """Returns the input's shape, with the dimensions that are normalised set to 1."""
    if "dim" not in named:
        return checks.norm_statistics_shape(input, named["normalized_shape"])
    return checks.statistics_shape(input, named["dim"])


def is_innermost(tensor: torch.Tensor, dim: int) -> bool:
    """Whether a tensor is not contiguous, but would be if ``dim`` were its last dimension."""
    return not tensor.is_contiguous() and tensor.movedim(dim, -1).is_contiguous()


def _empty_like(
    input: torch.Tensor, named: Named, dtype: torch.dtype, *others: torch.Tensor
) -> torch.Tensor:
    """Returns an uninitialised tensor of ``input``'s shape and of ``dtype``. It is contiguous,
    unless ``dim`` is innermost in the memory of ``input`` and of all ``others``: it is then
    innermost here too."""
    if "dim" not in named or not all(is_innermost(t, named["dim"]) for t in (input, *others)):
        return torch.empty_like(input, dtype=dtype, memory_format=torch.contiguous_format)
    moved = input.movedim(named["dim"], -1)
    result = torch.empty_like(moved, dtype=dtype, memory_format=torch.contiguous_format)
    return result.movedim(-1, named["dim"])


# --- checks -------------------------------------------------------------------------------------


def _check_tensors(op: NormOp, named: Named) -> None:
    """Checks the tensor that is normalised, and the parameters."""
    function, like = op.function, (op.input, named[op.input])
    checks.check_dtype_of(function, *like)
    if op.is_spatial:
        checks.check_dim(function, like[1], named["dim"])
    else:
        checks.check_norm_shape(function, like, named["normalized_shape"])
    shape, what = _parameter_shape(like[1], named), ""
    if op.is_spatial:
        what = f"{shape}, the size of dim {named['dim'] % max(like[1].dim(), 1)}"
    for name in ("weight", "bias"):
        checks.check_norm_parameter(function, name, named.get(name), like, shape, what)


# --- forward ------------------------------------------------------------------------------------


def fake_forward(op: NormOp, call: Any) -> Any:
    """Checks the arguments and returns uninitialised tensors like the op's results."""
    named = call._asdict()
    input: torch.Tensor = named["input"]
    function = op.function
    if op.has_residual:
        checks.check_optional_seed(function, named["p"], named["seed"], ("input", input))
    _check_tensors(op, named)
    checks.check_eps(function, named["eps"])
    dtype = input.dtype
    if op.has_residual:
        checks.check_term(function, "residual", named["residual"], ("input", input))
        dtype = torch.promote_types(dtype, named["residual"].dtype)
    shape, of_statistics = _statistics_shape(input, named), checks.statistics_dtype(dtype)
    sum_size = input.shape if named.get("wants_sum", True) else [0]

    def empty(result: str) -> torch.Tensor:
        if result in ("mean", "rstd"):
            return input.new_empty(shape, dtype=of_statistics)
        if result == "sum":
            return input.new_empty(sum_size, dtype=dtype)
        return _empty_like(input, named, dtype)

    results = tuple(map(empty, op.results))
    return results if len(results) > 1 else results[0]


# --- backward -----------------------------------------------------------------------------------


def needed_of_inputs(output_mask: Sequence[bool], *, shared: bool) -> list[bool]:
    """Returns which gradients of input and residual an op computes. If ``shared``, the op computes
    one gradient for both (:func:`share_gradient`), and returns it as the input's."""
    of_input, of_residual, *_ = output_mask
    return [of_input or of_residual, False] if shared else [of_input, of_residual]


def share_gradient(p: float, input: torch.dtype | None, residual: torch.dtype | None) -> bool:
    """Whether input and residual have one gradient: there is no dropout, and their dtypes are
    equal. None stands for the dtype of their sum."""
    return p == 0 and input == residual


def _check_backward(op: NormOp, named: Named) -> None:
    function, like = op.function, (op.input, named[op.input])
    _check_tensors(op, named)
    checks.check_like(function, "grad_output", named["grad_output"], like)
    if named.get("grad_sum") is not None:
        checks.check_like(function, "grad_sum", named["grad_sum"], like)
    shape = _statistics_shape(like[1], named)
    for name in ("mean", "rstd"):
        if name in named:
            checks.check_statistic(function, name, named[name], like, shape)
    checks.check_eps(function, named.get("eps", 0.0))


def fake_backward(op: NormOp, call: Any) -> tuple[torch.Tensor, ...]:
    """Checks the arguments and returns uninitialised gradients, of shape [0] if not needed."""
    named = call._asdict()
    input: torch.Tensor = named[op.input]
    mask, function = named["output_mask"], op.function
    checks.check_output_mask(function, mask, len(op.results))
    terms: tuple[torch.dtype, ...] = ()
    if op.has_residual:
        checks.check_optional_seed(function, named["p"], named["seed"], ("sum", input))
        terms = checks.check_term_dtypes(
            function, input, named["input_dtype"], named["residual_dtype"]
        )
        mask = [*needed_of_inputs(mask, shared=share_gradient(named["p"], *terms)), *mask[2:]]
    _check_backward(op, named)
    # The first gradients have the dtypes of input and residual, the others those of the parameters.
    dtypes = dict(zip(op.results, terms or (input.dtype,), strict=False))

    def empty(result: str, is_needed: bool) -> torch.Tensor:
        if result in dtypes and is_needed:
            return _empty_like(input, named, dtypes[result], named["grad_output"])
        parameter = named.get(result.removeprefix("grad_"))
        dtype = dtypes.get(result) or (input if parameter is None else parameter).dtype
        return input.new_empty(_parameter_shape(input, named) if is_needed else [0], dtype=dtype)

    return tuple(map(empty, op.results, mask))
