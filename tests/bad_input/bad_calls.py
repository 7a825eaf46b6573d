"""Bad calls as rows of a table, each run in another process, so that a crash fails one row alone.

A row is a call, as the text of a Python expression, and what is wanted of it:

    refused("softmax(x, 2)", r"dim is 2, wanted a value in")
    answers("softmax(x.t(), 0)", "torch.softmax(x.t(), 0)")
    either("torch.func.grad(...)(x)", "torch.func.grad(...)(x)", r"torch.func")

Names in an expression are fusedops' own (``softmax``, ``nn``, ``parallel_stack``, ...), ``torch``,
and the tensors of :data:`VALUES`. A refusal is an error of :data:`REFUSALS` whose text the pattern
finds, on one line, after which every tensor that was given has the bits and the version it had. An
answer is what the second expression gives: values within the tolerance of the dtype, and shape,
dtype and device.
"""

from __future__ import annotations

import functools
import multiprocessing
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
import torch

import fusedops
from fusedops import reference

#: The errors that Python and torch raise for bad arguments. Any other is an accident.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, OSError)
#: Parts of messages about internals, torch's or ours, which mean nothing to a user.
INTERNALS = re.compile(
    r"aoti_torch|INTERNAL ASSERT|report a bug|Exception raised from|\.cpp:|\.h:\d|c10::"
)
_SECONDS = 120  # a row that takes longer hangs


class Row(NamedTuple):
    call: str
    refusal: str | None = None
    answer: str | None = None
    tolerance: float | None = None

    def __str__(self) -> str:
        return self.call


def refused(call: str, pattern: str) -> Row:
    return Row(call, refusal=pattern)


def answers(call: str, expected: str, tolerance: float | None = None) -> Row:
    return Row(call, answer=expected, tolerance=tolerance)


def clear(argument: str, got: str) -> str:
    """A pattern for messages, on any number of lines, that name both and what was wanted."""
    return rf"(?s)^(?=.*\b{argument}\b)(?=.*({got}))(?=.*([Ww]anted|[Ee]xpected|must be|needs))"


def either(call: str, expected: str, pattern: str) -> Row:
    """The right result or a clear refusal, where it is up to torch which one it is."""
    return Row(call, refusal=pattern, answer=expected)


class Subclass(torch.Tensor):
    """A tensor subclass that adds nothing."""


class SubclassedParameter(torch.nn.Parameter):
    """A subclass of Parameter that adds nothing."""


def _negative_view(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a view whose elements are stored with the other sign."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def _quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def _nested(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x, x[:2]], layout=torch.strided)


def _jagged(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)


def _stats(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What softmax_stats gives, computed in float64."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    max = x.double().amax(-1, keepdim=True)
    shift = max.masked_fill(max == -torch.inf, 0)
    return max.to(wide), (x.double() - shift).exp().sum(-1, keepdim=True).to(wide)


def _raises(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> None:
        raise error

    return function


#: What the names of an expression stand for, made anew for each row.
VALUES: dict[str, Callable[[], Any]] = {
    "x": lambda: torch.linspace(-2, 2, 15).sin().mul(3).reshape(3, 5),
    "y": lambda: torch.linspace(-1, 3, 15).cos().mul(2).reshape(3, 5),
    "w": lambda: torch.linspace(0.5, 1.5, 5),
    "b": lambda: torch.linspace(-1, 1, 5),
    "mask": lambda: torch.ones(3, 5, dtype=torch.bool).tril(2),
    "seed": lambda: torch.tensor(7),
    "out": lambda: torch.full((3, 5), 9.0),
    "m": lambda: VALUES["x"]().amax(-1, keepdim=True),
    "s": lambda: (VALUES["x"]() - VALUES["m"]()).exp().sum(-1, keepdim=True),
    "leaf": lambda: VALUES["x"]().requires_grad_(),
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "np": lambda: np,
    "torch": lambda: torch,
    "fusedops": lambda: fusedops,
    "nn": lambda: fusedops.nn,
    "config": lambda: fusedops.config,
    "Subclass": lambda: Subclass,
    "SubclassedParameter": lambda: SubclassedParameter,
    "negative_view": lambda: _negative_view,
    "inference": lambda: _inference,
    "quantized": lambda: _quantized,
    "nested": lambda: _nested,
    "jagged": lambda: _jagged,
    "stats": lambda: _stats,
    "reference": lambda: reference,
    "raises": lambda: _raises,
    "Fake": lambda: torch._subclasses.FakeTensorMode().from_tensor,
}


class _Names(dict):
    """The names of one row. Functions note what a refused call did to its tensors."""

    def __init__(self) -> None:
        super().__init__(__builtins__=__builtins__)
        self.touched: list[str] = []

    def __missing__(self, name: str) -> Any:
        if name in VALUES:
            self[name] = VALUES[name]()
        elif callable(function := getattr(fusedops, name, None)):
            self[name] = self._watched(function)
        else:
            raise KeyError(name)
        return self[name]

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = [(tensor, _state(tensor)) for tensor in _tensors((args, kwargs))]
            try:
                return function(*args, **kwargs)
            except Exception:
                for tensor, (version, *bits) in before:
                    version_now, *bits_now = _state(tensor)
                    self.touched += ["wrote into an argument"] * (bits_now != bits)
                    self.touched += ["raised an argument's version"] * (version_now != version)
                raise

        return watched


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The version and the bits of a tensor, as far as it has them."""
    version = None if tensor.is_inference() else tensor._version
    plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested
    if (
        not plain
        or tensor.device.type != "cpu"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return (version,)
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.numel() > 1 << 20:
        return (version,)
    with torch.no_grad():
        bits = tensor.detach().resolve_neg().resolve_conj().as_subclass(torch.Tensor)
        return version, bits.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


# --- judging a row, in the child -----------------------------------------------------------------


def run(row: Row) -> str:
    """What is wrong with the row; empty where nothing is."""
    torch.manual_seed(0)
    names = _Names()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = eval(row.call, names)
    except Exception as error:
        return _judge_refusal(row, error, names.touched)
    if row.answer is None:
        return f"was taken, wanted a refusal with {row.refusal!r}: {result!r:.300}"
    return _judge_answer(row, result)


def _judge_refusal(row: Row, error: Exception, touched: list[str]) -> str:
    text = f"{type(error).__name__}: {error}"
    if row.refusal is None:
        return f"refused, wanted an answer: {text}\n{traceback.format_exc(limit=-4)}"
    if touched:
        return f"{touched[0]} before it refused: {text}"
    if not isinstance(error, REFUSALS):
        return f"an accident, wanted a refusal with {row.refusal!r}: {text}"
    if not re.search(row.refusal, str(error)):
        return f"refused in other words, wanted {row.refusal!r}: {text}"
    return f"speaks of internals: {text}" if INTERNALS.search(str(error)) else ""


def _judge_answer(row: Row, result: Any) -> str:
    expected = eval(row.answer, _Names())
    tolerance = {} if row.tolerance is None else {"rtol": row.tolerance, "atol": row.tolerance}
    try:
        if isinstance(expected, (torch.Tensor, tuple, list)):
            torch.testing.assert_close(result, expected, equal_nan=True, **tolerance)
        else:
            assert result == expected, f"{result!r}, wanted {expected!r}"
    except (AssertionError, TypeError) as error:
        return f"another result than {row.answer}: {error}"
    return ""


# --- the child -----------------------------------------------------------------------------------


class Child:
    """The process that rows run in. If it dies, the row that it was given fails."""

    def __init__(self) -> None:
        self._executor: ProcessPoolExecutor | None = None

    def problem_with(self, row: Row) -> str:
        if self._executor is None:
            spawn = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(1, mp_context=spawn)
        try:
            return self._executor.submit(run, row).result(timeout=_SECONDS)
        except BrokenProcessPool as error:
            self.close()
            return f"crashed the process: {error}"
        except TimeoutError:
            for process in self._executor._processes.values():
                process.kill()
            self.close()
            return f"did not end in {_SECONDS} seconds"

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
        self._executor = None
