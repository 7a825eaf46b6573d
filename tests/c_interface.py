"""The C interface on numpy arrays, and what its functions should compute, in float64."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path

import numpy as np

#: As fusedops/c_api.h numbers them.
Status = IntEnum("Status", "SUCCESS POINTER SIZE EPS STREAM ENVIRONMENT MEMORY DEVICE", start=0)
#: Rounding of float32: a few operations a result.
CLOSE = {"rtol": 3e-6, "atol": 3e-7}


class Binding:
    """The library's functions by name, for arrays, None and numbers."""

    def __init__(self, path: Path):
        self.path, self.library = path, ctypes.CDLL(str(path))
        for name in ("fusedops_version", "fusedops_status_string", "fusedops_last_error"):
            getattr(self.library, name).restype = ctypes.c_char_p

    def status(self, name: str, *args) -> int:
        return getattr(self.library, name)(*map(_converted, args))

    def call(self, name: str, *args) -> None:
        assert self.status(name, *args) == Status.SUCCESS, self.text("fusedops_last_error")

    def text(self, name: str, *args) -> str:
        return getattr(self.library, name)(*args).decode()


def _converted(arg):
    if isinstance(arg, np.ndarray):
        assert arg.dtype == np.float32 and arg.flags.c_contiguous
        return arg.ctypes.data_as(ctypes.c_void_p)
    return ctypes.c_float(arg) if isinstance(arg, float) else arg


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def masked_scores(inp: np.ndarray, mask: np.ndarray | None, mask_future: bool) -> np.ndarray:
    scores = inp.astype(np.float64)
    if mask is not None:
        scores += mask[:, None, None]
    if mask_future:
        scores[..., np.triu(np.ones(inp.shape[-2:], bool), 1)] = -np.inf
    return scores


def padding(batch: int, length: int, hidden: float) -> np.ndarray:
    """A mask that hides some keys of every entry but the last."""
    mask = np.zeros((batch, length), np.float32)
    for entry in range(batch):
        mask[entry, max(1, length * (entry + 1) // batch) :] = hidden
    return mask


class LayerNorm:
    """The arrays of a LayerNorm and of its gradients, and what they should hold."""

    def __init__(self, rows: int, cols: int, eps: float = 1e-5):
        self.rows, self.cols, self.eps = rows, cols, eps
        self.inp, self.out_grad = 3 + normal(rows, cols), normal(rows, cols, seed=1)
        self.gamma, self.betta = normal(cols, seed=2), normal(cols, seed=3)
        self.ln_res, self.inp_grad = np.empty((2, rows, cols), np.float32)
        self.vars, self.means = np.empty((2, rows), np.float32)
        self.gamma_grad, self.betta_grad = np.empty((2, cols), np.float32)

    def forward(self, binding: Binding, stream=None) -> None:
        arrays = (self.ln_res, self.vars, self.means, self.inp, self.gamma, self.betta)
        binding.call("fusedops_layernorm", *arrays, self.rows, self.cols, self.eps, stream)

    def backward(self, binding: Binding, wanted=(True, True, True), stream=None) -> None:
        grads = (self.gamma_grad, self.betta_grad, self.inp_grad)
        given = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
        arrays = (*given, self.out_grad, self.inp, self.gamma, self.vars, self.means)
        binding.call("fusedops_layernorm_bw", *arrays, self.rows, self.cols, stream)

    def expected(self) -> dict[str, np.ndarray]:
        inp, grad = self.inp.astype(np.float64), self.out_grad.astype(np.float64)
        means, variances = inp.mean(-1), inp.var(-1) + self.eps
        x = (inp - means[:, None]) / np.sqrt(variances)[:, None]
        g = grad * self.gamma
        sums = g.mean(-1, keepdims=True) + x * (g * x).mean(-1, keepdims=True)
        return {
            "ln_res": x * self.gamma + self.betta,
            "vars": variances,
            "means": means,
            "inp_grad": (g - sums) / np.sqrt(variances)[:, None],
            "gamma_grad": (grad * x).sum(0),
            "betta_grad": grad.sum(0),
        }
