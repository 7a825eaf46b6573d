"""Calls of the package to run on the stand-in: of the C interface, and of every family's launch.

Each is made for a library, started on a stream as often as wanted, and checked after that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from c_interface import CLOSE, Binding, LayerNorm, masked_scores, normal, padding, softmax
from simt import families
from simt.cases.cross_entropy import CrossEntropyCase
from simt.cases.dropout import DropoutCase
from simt.cases.masked import MaskedCase
from simt.cases.norm import NormCase
from simt.cases.rows import Case
from simt.cases.spatial import SpatialCase
from simt.cases.stack import StackCase
from simt.cases.statistics import StatisticsCase
from simt.families import AnyCase
from simt.judge import Judge

from .library import Cuda, CudaError
from .races import softmax_over_dim


class Operation(Protocol):
    def reset(self) -> None:
        """Writes the inputs again that the operation overwrites. start() does it too."""

    def start(self, stream: int | None = None) -> None:
        """Raises CudaError where the package returns an error."""

    def check(self) -> None:
        """Compares the results, which must be complete, with float64."""


class OfCase:
    """A launch with the arguments of one of the emulator's cases."""

    def __init__(self, case: AnyCase, cuda: Cuda) -> None:
        self._cuda, self._case, self._given = cuda, case, families.inputs(case)
        self._prepared = families.prepare(cuda, case, self._given)

    @property
    def args(self) -> ctypes.Structure:
        return self._prepared.args

    def reset(self) -> None: ...

    def start(self, stream: int | None = None) -> None:
        self._cuda.enqueue(self.args, stream)

    def outputs(self) -> dict[str, np.ndarray]:
        return self._prepared.outputs()

    def check(self) -> None:
        Judge().add(self._case, self._given, self.outputs())


class CInterface(Binding):
    """That of a library which is loaded. An error is a CudaError."""

    def __init__(self, cuda: Cuda) -> None:
        self.library = cuda.cuda

    def call(self, name: str, *args: object) -> None:
        if status := self.status(name, *args):
            raise CudaError(status, self.text("fusedops_last_error"))


class InPlace:
    """A call of the C interface that overwrites its input; a subclass has the other arguments."""

    def __init__(self, cuda: Cuda, given: np.ndarray) -> None:
        self._binding, self._given, self._array = CInterface(cuda), given, np.empty_like(given)

    def reset(self) -> None:
        self._array[:] = self._given

    def start(self, stream: int | None = None) -> None:
        self.reset()
        name, *args = self.call()
        self._binding.call(name, self._array, *args, ctypes.c_void_p(stream))

    def check(self) -> None:
        np.testing.assert_allclose(self._array, self.expected(), **CLOSE)


class AttnSoftmax(InPlace):
    def __init__(self, shape: tuple[int, ...], cuda: Cuda) -> None:
        super().__init__(cuda, normal(*shape))
        self._mask = padding(shape[0], shape[3], -1e8)

    def call(self) -> tuple:
        return "fusedops_attn_softmax", self._mask, *self._given.shape, False

    def expected(self) -> np.ndarray:
        return softmax(masked_scores(self._given, self._mask, False))


class AttnSoftmaxGradient(InPlace):
    def __init__(self, rows: int, cols: int, cuda: Cuda) -> None:
        super().__init__(cuda, normal(rows, cols))
        self._probabilities = softmax(normal(rows, cols, seed=1))

    def call(self) -> tuple:
        return "fusedops_attn_softmax_bw", self._probabilities, *self._given.shape

    def expected(self) -> np.ndarray:
        product = self._given.astype(np.float64) * self._probabilities
        return product - self._probabilities * product.sum(-1, keepdims=True)


class LayerNormAndGradients:
    """The norm and its gradients; without those that are sums over rows, which take the emulator
    long where there are many columns."""

    def __init__(self, rows: int, cols: int, with_sums: bool, cuda: Cuda) -> None:
        self._binding = CInterface(cuda)
        self._norm, self._with_sums = LayerNorm(rows, cols), with_sums

    def reset(self) -> None: ...

    def start(self, stream: int | None = None) -> None:
        of_stream, wanted = ctypes.c_void_p(stream), (self._with_sums, self._with_sums, True)
        self._norm.forward(self._binding, of_stream)
        self._norm.backward(self._binding, wanted, of_stream)

    def check(self) -> None:
        for name, expected in self._norm.expected().items():
            if name in ("gamma_grad", "betta_grad") and not self._with_sums:
                continue
            tolerance = 4e-6 * max(1, np.abs(expected).max())
            actual = getattr(self._norm, name)
            np.testing.assert_allclose(actual, expected, 0, tolerance, err_msg=name)


#: The columns of rows that are summed, of others that a block holds, and of some that none holds.
FEW, SHORT, LONG = 200, 1000, 40_000
LONG_ROWS = Case("softmax_forward", "float32", "float32", 1, LONG, 4)
_CASES: dict[str, AnyCase] = {
    "softmax": Case("softmax_forward", "bfloat16", "float32", 3, SHORT, 8),
    "softmax of long rows": LONG_ROWS,
    "spatial softmax": softmax_over_dim(SHORT),
    "spatial softmax of the most shared memory": softmax_over_dim(3072),
    "spatial softmax backward": SpatialCase(
        *("spatial_softmax_backward", "float16", "float16", 2, 300, 24, 8)
    ),
    "spatial norm": SpatialCase(*("spatial_norm_forward", "float32", "float32", 2, SHORT, 16, 4)),
    "spatial norm backward": SpatialCase(
        *("spatial_norm_backward", "float32", "float32", 2, 64, 16, 4)
    ),
    "add_norm": NormCase("norm_forward", "bfloat16", 3, SHORT, 8, adds=True, p=0.3),
    "norm backward": NormCase("norm_backward", "float32", 40, FEW, 4),
    "norm backward of long rows": NormCase(
        *("norm_backward", "float16", 1, LONG, 8), wanted=(True, False, False)
    ),
    "masked softmax": MaskedCase(
        *("masked_softmax_forward", "float32", "float32", (1, 2, 3), SHORT, 4),
        **{"mask": "bool 1011", "bias": "float32 1111", "p": 0.3},
    ),
    "masked softmax backward": MaskedCase(
        *("masked_softmax_backward", "float32", "float32", (1, 2, 3), SHORT, 4),
        **{"mask": "bool 1011"},
    ),
    "softmax in two steps: statistics": StatisticsCase("softmax_statistics", LONG_ROWS),
    "softmax in two steps: apply": StatisticsCase("softmax_apply", LONG_ROWS),
    "cross_entropy": CrossEntropyCase("cross_entropy_forward", "bfloat16", 3, SHORT),
    "cross_entropy of long rows": CrossEntropyCase("cross_entropy_forward", "float32", 2, LONG),
    "cross_entropy backward": CrossEntropyCase("cross_entropy_backward", "float16", 3, SHORT),
    "dropout": DropoutCase("bfloat16", 3, SHORT, 4),
    "dropout of long rows": DropoutCase("float32", 2, LONG + 1),
    "softmax of a stack": StackCase(Case("softmax_forward", "float32", "float32", 3, 64, 4), 2),
}
OPERATIONS: dict[str, Callable[[Cuda], Operation]] = {
    "attn_softmax": partial(AttnSoftmax, (2, 3, 5, 7)),
    "attn_softmax of long rows": partial(AttnSoftmax, (1, 1, 1, LONG)),
    "attn_softmax_bw": partial(AttnSoftmaxGradient, 5, SHORT),
    "attn_softmax_bw of long rows": partial(AttnSoftmaxGradient, 1, LONG),
    "layernorm": partial(LayerNormAndGradients, 9, FEW, True),
    "layernorm of long rows": partial(LayerNormAndGradients, 1, LONG, False),
    **{name: partial(OfCase, case) for name, case in _CASES.items()},
}
