"""Kernels run on the current device and stream, in order, and can be captured in CUDA graphs."""

import pytest
import torch
from oracle import same_bits

import fusedops

COLS = 1000
A_TENTH_OF_A_SECOND = 200_000_000  # clocks, at 1 to 2.4 GHz


def norm_backward(x):
    _, mean, rstd = torch.ops.fusedops.layer_norm(x, [COLS], None, None, 1e-5)
    return torch.ops.fusedops.layer_norm_backward(
        x, x, [COLS], mean, rstd, torch.ones(COLS, device=x.device), None, [True, True, False]
    )[1]


OPS = {
    "softmax": lambda x: fusedops.softmax(x, -1),
    "softmax over rows": lambda x: fusedops.softmax(x, 0),
    "log_softmax": lambda x: fusedops.log_softmax(x, -1),
    "softmax backward": lambda x: torch.ops.fusedops.softmax_backward(x, x, -1, x.dtype),
    "layer_norm": lambda x: fusedops.layer_norm(x, [COLS]),
    "layer_norm backward": norm_backward,
}


@pytest.mark.parametrize("op", OPS)
def test_kernels_run_on_the_current_stream_behind_what_it_holds(op):
    early, late = torch.randn(2, 64, COLS, device="cuda")
    expected = OPS[op](late)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(A_TENTH_OF_A_SECOND)
        early.copy_(late)
        # On another stream this would read `early` before it is overwritten.
        actual = OPS[op](early)
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert same_bits(actual, expected)


def test_two_streams_do_not_share_a_workspace():
    x = torch.randn(2, 3000, COLS, device="cuda")
    expected = [norm_backward(part) for part in x]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    actual = []
    for _ in range(10):
        for stream, part in zip(streams, x, strict=True):
            with torch.cuda.stream(stream):
                actual.append(norm_backward(part))
    torch.cuda.synchronize()
    assert all(same_bits(a, expected[i % 2]) for i, a in enumerate(actual))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("op", OPS)
def test_a_tensor_on_another_device_than_the_current_one(op):
    x = torch.randn(64, COLS)
    expected = OPS[op](x.to("cuda:0"))
    with torch.cuda.device(0):
        actual = OPS[op](x.to("cuda:1"))
        assert torch.cuda.current_device() == 0
    assert actual.device == torch.device("cuda:1")
    torch.testing.assert_close(actual.cpu(), expected.cpu())


@pytest.mark.parametrize("op", OPS)
def test_a_recorded_graph_computes_anew_at_every_replay(op):
    x = torch.randn(64, COLS, device="cuda")
    OPS[op](x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = OPS[op](x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert same_bits(output, OPS[op](x))
