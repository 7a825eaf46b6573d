"""parallel_stack names the branch that failed, and leaves nothing running behind an error."""

from __future__ import annotations

import dataclasses
import gc
import signal
import threading
import time
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
from branches import TIMEOUT, fail, meeting, same
from modes import Called

import fusedops
from fusedops.parallel import threads


def test_the_first_branchs_error_surfaces_with_a_note_and_the_others_in_notes():
    meet = threading.Barrier(2)

    def late(x):
        meet.wait(TIMEOUT)
        time.sleep(0.05)
        raise KeyError("late")

    def early(x):
        meet.wait(TIMEOUT)
        raise ZeroDivisionError("early")

    x = torch.ones(1)
    with pytest.raises(KeyError) as caught:
        fusedops.parallel_stack([late, early], [x, x])
    assert [note.split("<locals>.")[1] for note in caught.value.__notes__] == [
        "late)",
        "early) raised ZeroDivisionError: early",
    ]
    assert "raised by branch 0" in caught.value.__notes__[0]


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Nameless:
    def __call__(self, x):
        raise KeyError("of a nameless function")

    def __getattr__(self, name):
        raise ValueError("no attributes")


@pytest.mark.parametrize("on", ["the caller", "a helper"])
@pytest.mark.parametrize(
    "error", [Frozen(1), Unprintable(), StopIteration(1), GeneratorExit(), SystemExit(3)],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_error_surfaces_as_it_was_raised_on_every_thread(error, on):
    meet = threading.Barrier(2)

    def branch(x):
        meet.wait(TIMEOUT)
        if (threading.current_thread() is threading.main_thread()) == (on == "the caller"):
            raise error
        return x

    with pytest.raises(type(error)) as caught:
        fusedops.parallel_stack(branch, [torch.ones(1)] * 2)
    assert caught.value is error and "raised by branch" in error.__notes__[-1]


def test_an_error_without_a_text_is_told_beside_others():
    meet = meeting()
    failing = [fail(error, meet) for error in (KeyError(1), Unprintable())]
    with pytest.raises(KeyError) as caught:
        fusedops.parallel_stack(failing, [torch.ones(1)] * 2)
    assert "raised" in caught.value.__notes__[1] and "Unprintable" in caught.value.__notes__[1]


def test_a_function_without_a_name_is_called_by_its_type():
    with pytest.raises(KeyError) as caught:
        fusedops.parallel_stack(Nameless(), [torch.ones(1)])
    assert caught.value.__notes__ == ["parallel_stack: raised by branch 0 (Nameless)"]


def test_a_result_whose_memory_is_freed_is_refused():
    def freed(x):
        result = x * 2
        result.untyped_storage().resize_(0)
        return result

    with pytest.raises(RuntimeError, match=r"branch 0 returned a tensor of shape \[3\] whose mem"):
        fusedops.parallel_stack(freed, [torch.ones(3)])


def test_when_an_error_surfaces_nothing_runs_and_nothing_more_has_begun():
    begun, ended, meet = [], [], threading.Barrier(2)

    def slow(x):
        begun.append("slow")
        meet.wait(TIMEOUT)
        time.sleep(0.1)
        ended.append("slow")
        return x

    def failing(x):
        begun.append("failing")
        meet.wait(TIMEOUT)
        raise ValueError("no")

    def never(x):
        begun.append("never")
        return x

    x = torch.ones(1)
    with pytest.raises(ValueError, match="no"):
        fusedops.parallel_stack([slow, failing] + [never] * 20, [x] * 22)
    assert ended == ["slow"]
    seen = len(begun)
    time.sleep(0.05)
    assert len(begun) == seen < 22
    same(fusedops.parallel_stack(torch.sin, [x, x]), torch.stack([x.sin()] * 2))


@pytest.mark.parametrize("context", [nullcontext, Called], ids=["threads", "in turn"])
def test_an_error_keeps_no_tensors_alive(context):
    def failing(x):
        raise ValueError("no")

    x = torch.randn(3)
    alive = weakref.ref(x)
    gc.disable()
    try:
        try:
            with context():
                fusedops.parallel_stack([torch.sin, failing], [x, x])
        except ValueError:
            del x
        assert alive() is None
    finally:
        gc.enable()


@pytest.fixture
def interruptible():
    """A shell's background jobs ignore SIGINT, and so does a Python that one of them starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_waiting_leaves_nothing_running(interruptible):
    ended, meet = [], threading.Barrier(2)

    def branch(x):
        meet.wait(TIMEOUT)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # the caller has come to wait
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.1)
            ended.append(True)
        return x

    x = torch.ones(1)
    with pytest.raises(KeyboardInterrupt):
        fusedops.parallel_stack(branch, [x, x])
    assert ended == [True]
    same(fusedops.parallel_stack(meeting(), [x, x]), torch.stack([x.sin()] * 2))


def test_an_interrupt_before_the_first_branch_runs_none(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    begun = []
    monkeypatch.setattr(threads, "_try_submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fusedops.parallel_stack(begun.append, [torch.ones(1)] * 2)
    assert begun == []


def test_an_error_of_a_thread_outside_any_branch_surfaces(monkeypatch):
    @contextmanager
    def failing(count):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("no such library")
        yield

    def slow(x):
        time.sleep(0.05)
        return x

    monkeypatch.setattr(threads, "_intra_op_threads", failing)
    with pytest.raises(OSError, match="no such library"):
        fusedops.parallel_stack(slow, [torch.ones(1)] * 4)


def test_an_interrupt_in_a_branch_comes_before_errors_of_others():
    meet = threading.Barrier(2)

    def branch(x):
        meet.wait(TIMEOUT)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        raise ValueError("other")

    with pytest.raises(KeyboardInterrupt) as caught:
        fusedops.parallel_stack(branch, [torch.ones(1)] * 2)
    assert "ValueError: other" in caught.value.__notes__[1]
