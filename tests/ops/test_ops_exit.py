"""Programs that end while daemon threads are inside an op end as if they were not."""

from __future__ import annotations

import pytest
from processes import run_python

#: Processes, forked before a thread is started; each ends with four threads at work.
PROGRAM = """
import os, sys, threading, time, torch, fusedops

def loop(x, w):
    while True:
        y = fusedops.layer_norm(fusedops.softmax(x, -1), w.shape, w, w)
        if x.requires_grad:
            y.sum().backward()

def run(threads, grad):
    torch.set_num_threads(threads)
    x, w = torch.randn(256, 1024, requires_grad=grad), torch.ones(1024)
    for _ in range(4):
        threading.Thread(target=loop, args=(x, w), daemon=True).start()
    time.sleep(0.1)
    sys.exit(0)

def status(threads, grad):
    child = os.fork()
    if child == 0:
        run(threads, grad)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

statuses = [status({threads}, {grad}) for _ in range({processes})]
sys.exit(f"exit statuses {{statuses}}" if any(statuses) else 0)
"""


@pytest.mark.parametrize(
    "threads, grad, processes",
    [(1, False, 5), pytest.param(2, True, 20, marks=pytest.mark.exhaustive)],
    ids=["inference", "training"],
)
def test_daemon_threads_inside_an_op_do_not_abort_the_program(threads, grad, processes):
    program = PROGRAM.format(threads=threads, grad=grad, processes=processes)
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_program_that_waits_for_such_a_thread_when_it_ends_goes_on():
    program = """
import atexit, threading, torch
calls = 0
def loop():
    global calls
    while calls < 10**9:
        fusedops.softmax(x, -1)
        calls += 1
def wait():
    global calls
    before = calls
    while calls <= before:
        time.sleep(0.001)
    calls = 10**9
    thread.join()
atexit.register(wait)  # before fusedops registers: run after it
import time, fusedops
x = torch.randn(64, 64)
thread = threading.Thread(target=loop, daemon=True)
thread.start()
time.sleep(0.1)
"""
    done = run_python("-c", program, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
