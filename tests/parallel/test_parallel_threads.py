"""Branches of parallel_stack run at the same time, on threads in the caller's state."""

from __future__ import annotations

import contextvars
import ctypes
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from branches import TIMEOUT, in_new_thread, in_turn, meeting, same
from processes import run_python
from torch import nn

import fusedops
from fusedops.parallel import threads

# --- at the same time ----------------------------------------------------------------------------


def test_two_branches_run_at_the_same_time():
    x = torch.randn(3)
    same(fusedops.parallel_stack(meeting(), [x, x]), torch.stack([x.sin()] * 2))


def test_no_more_branches_run_at_once_than_there_are_cores():
    running, most, lock = 0, 0, threading.Lock()

    def branch(x):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return x

    fusedops.parallel_stack(branch, [torch.ones(1)] * 4 * threads.most_threads())
    assert 2 <= most <= threads.most_threads()


def test_calls_within_branches_end_when_every_thread_is_busy():
    def tree(x, depth):
        if depth == 0:
            return x.sin()
        return fusedops.parallel_stack(tree, [(x, depth - 1)] * 3)

    x = torch.randn(2)
    same(tree(x, 4), x.sin().expand(3, 3, 3, 3, 2).contiguous())


def test_a_call_within_a_branch_ends_while_the_other_branch_waits_for_it():
    done = threading.Event()

    def inner(x):
        out = fusedops.parallel_stack(torch.sin, [x, x]).sum(0)
        done.set()
        return out

    def outer(x):
        assert done.wait(TIMEOUT)
        return x

    x = torch.randn(3)
    same(fusedops.parallel_stack([outer, inner], [x, x]), torch.stack([x, x.sin() * 2]))


def test_many_threads_may_call_at_once():
    x = torch.randn(3)

    def call(_):
        branches = [torch.sin, torch.cos, torch.exp]
        return [fusedops.parallel_stack(branches, [x] * 3) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        results = sum(pool.map(call, range(4)), [])
    expected = torch.stack([x.sin(), x.cos(), x.exp()])
    assert len(results) == 80 and all(torch.equal(result, expected) for result in results)


def test_a_forked_process_has_threads_of_its_own():
    x = torch.randn(3)
    fusedops.parallel_stack(meeting(), [x, x])  # the pool is there
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT)
        try:
            right = torch.equal(fusedops.parallel_stack(meeting(), [x, x])[1], x.sin())
            os._exit(0 if right else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fusedops.parallel_stack(meeting(), [x, x])


class NoThreads:
    """A pool that fails to start threads, but keeps the work it was given, or even does it."""

    def __init__(self, does_it=False):
        self.does_it, self.begun, self.asked = does_it, [], []

    def submit(self, work, *arguments):
        self.asked.append(lambda: work(*arguments))
        if self.does_it:
            self.begun.append(threading.Thread(target=self.asked[-1]))
            self.begun[-1].start()
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("does_it", [False, True])
def test_without_other_threads_the_caller_does_it_all(monkeypatch, does_it):
    """ThreadPoolExecutor keeps the work in its queue where it fails to start a thread for it."""
    pool, x = NoThreads(does_it), torch.randn(3)
    monkeypatch.setattr(threads, "_pool", lambda: pool)

    def slow(x):
        time.sleep(0.02)
        return x.sin()

    for _ in range(5):
        same(fusedops.parallel_stack(slow, [x] * 4), torch.stack([x.sin()] * 4))
    for thread in pool.begun:
        thread.join()
    assert len(pool.asked) == 5 and [late() for late in pool.asked] == [None] * 5


def test_a_call_while_python_exits_ends():
    code = """
import atexit, torch, fusedops
def last():
    out = fusedops.parallel_stack(torch.sin, [torch.ones(2)] * 4)
    print(torch.equal(out, torch.ones(4, 2).sin()))
atexit.register(last)
"""
    ended = run_python("-c", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


# --- what belongs to a thread --------------------------------------------------------------------


def per_branch(look, count=2):
    """The results of ``look()`` inside branches that run on different threads."""
    seen, barrier = [], threading.Barrier(count)

    def branch(x):
        barrier.wait(TIMEOUT)
        seen.append(look())
        return x

    fusedops.parallel_stack(branch, [torch.ones(1)] * count)
    return seen


@pytest.mark.parametrize("grad", [True, False])
def test_a_grad_mode_that_a_branch_sets_is_its_own(grad):
    seen = []

    def branch(x):
        seen.append(torch.is_grad_enabled())
        torch.set_grad_enabled(not grad)
        return x.sin()

    with torch.set_grad_enabled(grad):
        fusedops.parallel_stack(branch, [torch.ones(1)] * 8)
        assert torch.is_grad_enabled() is grad
    assert seen == [grad] * 8


@pytest.mark.parametrize("grad", [True, False])
def test_grad_mode_is_the_callers(grad):
    with torch.set_grad_enabled(grad):
        assert per_branch(torch.is_grad_enabled) == [grad] * 2
    assert per_branch(torch.is_grad_enabled) == [True] * 2


def test_inference_mode_is_the_callers():
    x = torch.randn(3, requires_grad=True)
    with torch.inference_mode():
        assert per_branch(torch.is_inference_mode_enabled) == [True] * 2
        assert fusedops.parallel_stack(meeting(), [x, x]).is_inference()
    assert per_branch(torch.is_inference_mode_enabled) == [False] * 2
    assert not fusedops.parallel_stack(meeting(), [x.detach()] * 2).is_inference()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_the_callers(dtype):
    def look():
        return torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()

    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype, cache_enabled=False):
        assert per_branch(look) == [(True, False)] * 2
        same(fusedops.parallel_stack(torch.mm, [(x, x)] * 2), in_turn([torch.mm] * 2, [(x, x)] * 2))
        assert fusedops.parallel_stack(torch.mm, [(x, x)] * 2).dtype == dtype
    assert per_branch(look) == [(False, True)] * 2


def test_a_branchs_own_autocast_leaves_the_callers_cache_as_it_is():
    weight, meet = nn.Parameter(torch.randn(4, 4)), meeting()

    def branch(x):
        meet(x)
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    def cast():  # the node that casts the weight: a new one if the cache has lost it
        return (torch.ones(4, 4) @ weight).grad_fn.next_functions[1][0]

    with torch.autocast("cpu", torch.bfloat16):
        before = cast()
        fusedops.parallel_stack(branch, [torch.randn(4, 4)] * 2)
        assert cast() is before


def test_context_variables_are_the_callers_and_what_a_branch_sets_is_its_own():
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)

    def look():
        before = variable.get()
        variable.set(before + 1)
        return before, variable.get()

    assert per_branch(look) == [(7, 8)] * 2
    assert variable.get() == 7


@pytest.mark.parametrize("total, share", [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_branches_divide_the_intra_op_threads_and_nobody_else_notices(total, share):
    libraries = ctypes.PyDLL(torch._C.__file__)

    def look():  # torch's number, which is OpenMP's, and MKL's
        return torch.get_num_threads(), libraries.MKL_Get_Max_Threads()

    torch.set_num_threads(total)
    others = []

    def branch_look():
        others.append(in_new_thread(look))
        return look()

    assert per_branch(branch_look) == [(share, share)] * 2
    assert [*others, look(), in_new_thread(look)] == [(total, total)] * 4
