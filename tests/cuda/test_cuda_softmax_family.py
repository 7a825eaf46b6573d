"""The tests in tests/ops of masked softmax, dropout and in-place softmax, with tensors on a GPU."""

import pytest
import torch
from test_masked_softmax_grad import *  # noqa: F403
from test_masked_softmax_values import *  # noqa: F403
from test_softmax_dropout import *  # noqa: F403
from test_softmax_inplace import *  # noqa: F403

import fusedops

pytestmark = pytest.mark.usefixtures("tensors_on_gpu")


def test_a_replayed_cuda_graph_draws_fresh_numbers():
    x = torch.zeros(64, 64)
    fusedops.masked_softmax_dropout(x)  # warm up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fusedops.masked_softmax_dropout(x)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(y.clone())
    assert not torch.equal(*results)
