"""parallel_stack on CUDA streams, which are recorded here instead of run."""

from __future__ import annotations

import weakref
from contextlib import contextmanager

import torch
from branches import fail, in_new_thread, same

import fusedops
from fusedops.parallel import api
from fusedops.parallel import streams as on_streams
from fusedops.parallel.branches import Branch


class Recorder(on_streams.CudaStreams):
    """Streams that log what is asked of them; the log names tensors by their first element."""

    def __init__(self):
        self.log = []
        self.now = "current"
        self.made = 0

    def current(self):
        return RecordedStream("current", self.log)

    @contextmanager
    def borrowed(self, count):
        yield [RecordedStream(f"s{i}", self.log) for i in range(count)]

    @contextmanager
    def using(self, stream):
        before, self.now = self.now, stream.name
        yield
        self.now = before

    def record_use(self, tensor, stream):
        self.log.append(f"{int(tensor.flatten()[0])} is used on {stream.name}")


class RecordedStream:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self):
        self.log.append(f"{self.name} records")
        return f"what {self.name} recorded"

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")


def recorded(functions, inputs):
    """The log of a call, where each function adds a line, and its result or error."""
    streams = Recorder()

    def on_its_stream(function):
        def branch(*arguments):
            streams.log.append(f"runs on {streams.now}")
            return function(*arguments)

        return branch

    branches = [Branch(on_its_stream(f), x) for f, x in zip(functions, inputs, strict=True)]
    try:
        out = on_streams.run_on_streams(branches, 0, streams)
    except Exception as error:
        out = error
    return streams.log, out


def full(*values):
    return tuple(torch.full((2,), value) for value in values)


#: How the current stream joins two.
JOINED = [
    "s0 records",
    "current waits for what s0 recorded",
    "s1 records",
    "current waits for what s1 recorded",
]


def test_streams_fork_from_the_current_one_and_join_it():
    one, two, three = full(1, 2, 3)
    nested = ((one, {"two": [two]}, "no tensor"), (three,))
    log, out = recorded([lambda x, d, _: x * 10, lambda x: x * 10], nested)
    assert log == [
        "current records",
        "s0 waits for what current recorded",
        "1 is used on s0",
        "2 is used on s0",
        "runs on s0",
        "10 is used on current",
        "s1 waits for what current recorded",
        "3 is used on s1",
        "runs on s1",
        "30 is used on current",
        *JOINED,
    ]
    assert out.tolist() == [[10, 10], [30, 30]]


def test_the_current_stream_joins_the_streams_begun_when_a_branch_raises():
    log, error = recorded(
        [torch.neg, fail(ValueError("no")), torch.neg], [full(1), full(2), full(3)]
    )
    assert isinstance(error, ValueError) and "branch 1" in error.__notes__[0]
    assert log[-7:] == [
        "s1 waits for what current recorded",
        "2 is used on s1",
        "runs on s1",
        *JOINED,
    ]


def test_the_output_belongs_to_the_current_stream(monkeypatch):
    streams, made_on = Recorder(), []

    def empty_strided(*args, make=torch.empty_strided, **kwargs):
        made_on.append(streams.now)
        return make(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    on_streams.run_on_streams([Branch(torch.sin, (torch.ones(2),))] * 3, 0, streams)
    assert made_on == ["current"]


def test_more_branches_than_streams_share_them(monkeypatch):
    monkeypatch.setattr(on_streams, "_MOST_STREAMS", 2)
    log, out = recorded([torch.neg] * 5, [full(i) for i in range(5)])
    assert [line for line in log if line.startswith("runs")] == [
        f"runs on s{i % 2}" for i in range(5)
    ]
    assert log[-4:] == JOINED
    assert torch.equal(out[:, 0], -torch.arange(5))


def test_streams_give_gradients_and_the_errors_of_threads():
    x = torch.randn(2, requires_grad=True)
    out = on_streams.run_on_streams([Branch(torch.sin, (x,))] * 2, 0, Recorder())
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], 2 * x.cos())
    _, error = recorded([torch.neg, lambda x: x[:1]], [full(1), full(2)])
    assert isinstance(error, RuntimeError) and "branch 1 returned shape [1]" in str(error)


def test_cuda_inputs_go_to_streams_of_their_device(monkeypatch):
    made_for, recorder = [], Recorder()

    def streams(device):
        made_for.append(device)
        return recorder

    cuda = torch.device("cuda:1")
    monkeypatch.setattr(api, "common_device", lambda branches: cuda)
    monkeypatch.setattr(api, "CudaStreams", streams)
    x = torch.ones(2)
    with torch.device("cpu"):  # a function mode: the calling thread launches, so nothing is lost
        same(fusedops.parallel_stack(torch.neg, [x, x], 1), torch.stack([-x, -x], 1))
    assert made_for == [cuda] and "s1 waits for what current recorded" in recorder.log


def test_streams_are_kept_and_lent_to_one_call_at_a_time(monkeypatch):
    made = []

    def stream(device):
        made.append((device, len(made)))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    streams = on_streams.CudaStreams("a device of this test")
    with streams.borrowed(2) as first:
        with streams.borrowed(2) as within:
            assert not set(first) & set(within)
        with streams.borrowed(2) as again:
            assert again == within
    with streams.borrowed(3) as later:
        assert set(later) < {*first, *within}

    def borrow():
        with streams.borrowed(1) as others:
            return others

    assert not set(in_new_thread(borrow)) & {*first, *within}
    assert len(made) == 5


def test_results_that_no_gradient_needs_are_freed_at_once():
    earlier = []

    def branch(x):
        assert not any(result() is not None for result in earlier)
        result = x.sin()
        earlier.append(weakref.ref(result))
        return result

    on_streams.run_on_streams([Branch(branch, (torch.randn(3),))] * 4, 0, Recorder())
    assert len(earlier) == 4
