"""Bad calls as rows of tables. Another process makes them, so that a crash fails one row alone.

A row is a call, as the text of a Python expression, and what is wanted of it:

    refused("softmax(x, 2)", r"dim is 2, wanted a value in")
    answers("softmax(x.t(), 0)", "torch.softmax(x.t(), 0)")
    either("torch.func.grad(...)(x)", "torch.func.grad(...)(x)", r"torch.func")

Names in an expression are fusedops' own (``softmax``, ``nn``, ``parallel_stack``, ...), ``torch``,
and the tensors of :data:`VALUES`. A refusal is an error of :data:`REFUSALS` in whose text, with the
name of its type in front, the pattern is found. After it every tensor that was given has the bits
and the version it had. An answer is what the second expression gives: values within the tolerance
of the dtype, and shape, dtype and device.
"""

from __future__ import annotations

import functools
import multiprocessing
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

import fusedops
from fusedops import reference

#: The errors that Python and torch raise for bad arguments. Any other is an accident.
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, OSError)
#: Parts of messages about internals, torch's or ours, which mean nothing to a user.
INTERNALS = re.compile(
    r"aoti_torch|INTERNAL ASSERT|report a bug|Exception raised from|\.cpp:|\.h:\d|c10::"
    r"|fusedops::_"  # an operator that the user did not call
)
_SECONDS = 120  # a row that takes longer hangs


class Row(NamedTuple):
    call: str
    refusal: str | None = None
    answer: str | None = None
    tolerance: float | None = None

    def __str__(self) -> str:
        return self.call

    def problem(self) -> str:
        """What is wrong with the row; empty where nothing is."""
        torch.manual_seed(0)
        names = _Names()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = eval(self.call, names)
        except Exception as error:
            return _judge_refusal(self, error, names.touched)
        if self.answer is None:
            return f"was taken, wanted a refusal with {self.refusal!r}: {result!r:.300}"
        return _judge_answer(self, result)


def refused(call: str, pattern: str) -> Row:
    return Row(call, refusal=pattern)


def answers(call: str, expected: str, tolerance: float | None = None) -> Row:
    return Row(call, answer=expected, tolerance=tolerance)


def clear(argument: str, got: str, function: str = "") -> str:
    """A pattern for messages, on any number of lines, that name all and what was wanted."""
    named = "".join(rf"(?=.*{part})" for part in (function, rf"\b{argument}\b", f"({got})"))
    return rf"(?s)^{named}(?=.*([Ww]anted|[Ee]xpected|must be|needs))"


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


def _under_a_mode(call: Callable[[], Any]) -> Any:
    """What a call gives where a mode sees the functions of torch that it calls."""
    with torch.overrides.BaseTorchFunctionMode():
        return call()


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
    "classes": lambda: torch.tensor([0, 1, 2]),
    "leaf": lambda: VALUES["x"]().requires_grad_(),
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "np": lambda: np,
    "torch": lambda: torch,
    "fusedops": lambda: fusedops,
    "nn": lambda: fusedops.nn,
    "ops": lambda: torch.ops.fusedops,
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
    "under_a_mode": lambda: _under_a_mode,
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


# --- verdicts -----------------------------------------------------------------------------------


def _judge_refusal(row: Row, error: Exception, touched: list[str]) -> str:
    text = f"{type(error).__name__}: {error}"
    if row.refusal is None:
        return f"refused, wanted an answer: {text}\n{traceback.format_exc(limit=-4)}"
    if touched:
        return f"{touched[0]} before it refused: {text}"
    if not isinstance(error, REFUSALS):
        return f"an accident, wanted a refusal with {row.refusal!r}: {text}"
    if not re.search(row.refusal, text):
        return f"refused in other words, wanted {row.refusal!r}: {text}"
    return f"speaks of internals: {text}" if INTERNALS.search(text) else ""


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


class Judged(Protocol):
    """What the child judges: its text names it in a failure."""

    def problem(self) -> str: ...


def _serve(pipe: Any) -> None:
    """Answers every list of rows with what is wrong with each."""
    torch.set_num_threads(1)  # the tensors are small
    while True:
        for row in pipe.recv():
            try:
                pipe.send(row.problem())
            except Exception:  # an error of the judge itself counts as a wrong row too
                pipe.send(traceback.format_exc())


class Child:
    """The process that rows run in. If it dies, the row that it was at fails, and another process
    goes on behind it."""

    def __init__(self) -> None:
        self._process: Any = None

    def judge(self, rows: Sequence[Judged]) -> None:
        """Fails with a line for each row that is wrong."""
        assert rows
        problems = self.problems_with(rows)
        assert not problems, "\n".join(problems)

    def problems_with(self, rows: Sequence[Judged]) -> list[str]:
        if self._process is None:
            self._start()
        self._pipe.send(rows)
        found = []
        for index, row in enumerate(rows):
            if problem := self._next_answer():
                found.append(f"{row}: {problem}")
            if self._process is None:
                return found + self.problems_with(rows[index + 1 :])
        return found

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other_end = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(other_end,), daemon=True)
        self._process.start()
        other_end.close()

    def _next_answer(self) -> str:
        if not self._pipe.poll(_SECONDS):
            self.close()
            return f"did not end in {_SECONDS} seconds"
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join(timeout=_SECONDS)
            code = self._process.exitcode
            self.close()
            return f"crashed the process, whose exit code was {code}"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None
