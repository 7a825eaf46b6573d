"""Argument checks of the fake kernels: the same rules and words as in ``csrc/ops``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_WANTED_DTYPE = "wanted torch.float32, torch.bfloat16, torch.float16 or torch.float64"


def check(ok: bool, message: str) -> None:
    if not ok:
        raise RuntimeError(message)


def check_dtype(op: str, argument: str, dtype: torch.dtype, fix: str = "convert it") -> None:
    check(dtype in FLOATING, f"{op}: {argument} is {dtype}, {_WANTED_DTYPE}; {fix}")


def check_dim(op: str, input: torch.Tensor, dim: int) -> None:
    bound = max(input.dim(), 1)
    check(
        -bound <= dim < bound,
        f"{op}: dim is {dim}, wanted a value in [{-bound}, {bound - 1}] "
        f"for an input of shape {list(input.shape)}",
    )


def check_device(op: str, name: str, given: torch.Tensor, input: torch.Tensor) -> None:
    check(
        given.device == input.device,
        f"{op}: {name} is on {given.device}, wanted {input.device} as input is; "
        "move it with .to(input.device)",
    )


def check_seed(op: str, p: float, seed: torch.Tensor | None, input: torch.Tensor) -> None:
    check(
        seed is not None or p == 0,
        f"{op}: p is {p:g} without a seed; make one with torch.randint, one int64",
    )
    if seed is None:
        return
    check(0 <= p <= 1, f"{op}: p is {p:g}, wanted a probability in [0, 1]")
    check(
        seed.dtype == torch.int64 and seed.numel() == 1,
        f"{op}: seed is {seed.dtype} of shape {list(seed.shape)}, wanted one torch.int64; "
        "make it with torch.randint",
    )
    check_device(op, "seed", seed, input)


def check_out(op: str, out: torch.Tensor, input: torch.Tensor) -> None:
    check(
        out.shape == input.shape,
        f"{op}: out has shape {list(out.shape)}, wanted input's, {list(input.shape)}; "
        "make it with torch.empty_like(input)",
    )
    check_device(op, "out", out, input)


def check_normalized_shape(op: str, input: torch.Tensor, normalized_shape: Sequence[int]) -> None:
    wanted = list(normalized_shape)
    check(len(wanted) > 0, f"{op}: normalized_shape is empty, wanted at least one dimension")
    check(
        len(wanted) <= input.dim() and list(input.shape[-len(wanted) :]) == wanted,
        f"{op}: normalized_shape is {wanted}, wanted the last dimensions of input, "
        f"whose shape is {list(input.shape)}",
    )


def check_norm_parameter(
    op: str,
    name: str,
    parameter: torch.Tensor | None,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
) -> None:
    if parameter is None:
        return
    check(
        list(parameter.shape) == list(normalized_shape),
        f"{op}: {name} has shape {list(parameter.shape)}, wanted normalized_shape, "
        f"{list(normalized_shape)}",
    )
    check_device(op, name, parameter, input)
    check_dtype(op, name, parameter.dtype)


def check_like(op: str, name: str, given: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    check(
        given.dtype == like.dtype and given.shape == like.shape,
        f"{op}: {name} is {given.dtype} of shape {list(given.shape)}, wanted {like.dtype} of shape "
        f"{list(like.shape)} as {like_name} is",
    )
