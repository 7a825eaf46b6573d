"""fusedops.parallel_stack on a GPU runs branches concurrently, in order with other work, and can be
captured in a CUDA graph."""

import pytest
import torch
from test_cuda_streams import A_TENTH_OF_A_SECOND
from torch import nn

import fusedops


def in_turn(functions, inputs, dim=0):
    return torch.stack([f(x) for f, x in zip(functions, inputs, strict=True)], dim)


@pytest.fixture
def models():
    def model():
        return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.GELU(), nn.Linear(64, 32))

    return nn.ModuleList([model() for _ in range(4)]).cuda()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_values_random_numbers_and_gradients_are_torch_stacks(models, dim):
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    results = []
    for stack in (fusedops.parallel_stack, in_turn):
        torch.manual_seed(0)
        out = stack(models, [x] * 4, dim)
        results.append([out, *torch.autograd.grad(out.sin().sum(), [x, *models.parameters()])])
    torch.testing.assert_close(*results)  # another dropout pattern would differ by far more


def test_branches_run_at_the_same_time():
    ends = [torch.cuda.Event(), torch.cuda.Event()]

    def slow(x):
        torch.cuda._sleep(20 * A_TENTH_OF_A_SECOND)
        ends[0].record()
        return x.sin()

    def fast(x):
        y = x.sin()
        ends[1].record()
        return y

    x = torch.randn(64, device="cuda")
    fusedops.parallel_stack([torch.sin, torch.sin], [x, x])  # warms up what is done only once
    out = fusedops.parallel_stack([slow, fast], [x, x])
    ends[1].synchronize()
    assert not ends[0].query(), "the second branch waited for the first"
    assert torch.equal(out, torch.stack([x.sin()] * 2))


@pytest.mark.parametrize("own_stream", [False, True])
def test_branches_wait_for_what_came_before_and_what_follows_waits_for_them(own_stream):
    def slow(x):
        torch.cuda._sleep(A_TENTH_OF_A_SECOND)
        return x * 2

    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(A_TENTH_OF_A_SECOND)
        x.fill_(1)
        total = fusedops.parallel_stack([slow, slow], [x, x]).sum()
        x.fill_(7)  # after the branches have read it
    stream.synchronize()
    assert total.item() == 4 * x.numel()


def test_memory_is_not_handed_out_while_a_branch_still_uses_it():
    def slow(x):
        torch.cuda._sleep(A_TENTH_OF_A_SECOND // 20)
        return x * 2

    for step in range(20):
        out = fusedops.parallel_stack(
            slow, [torch.full((1 << 18,), float(step + i), device="cuda") for i in range(3)]
        )
        torch.full((3, 1 << 18), -1.0, device="cuda")  # may reuse the memory of inputs or results
        assert out[:, ::1000].mean(1).tolist() == [2.0 * (step + i) for i in range(3)]


def test_saved_tensors_stay_until_the_backward_pass_has_read_them():
    weights = [torch.randn(512, 512, device="cuda", requires_grad=True) for _ in range(3)]
    inputs = [torch.randn(512, 512, device="cuda") for _ in range(3)]
    expected = torch.autograd.grad(in_turn([w.mul for w in weights], inputs).sin().sum(), weights)
    for _ in range(20):
        out = fusedops.parallel_stack([w.mul for w in weights], [x.clone() for x in inputs])
        actual = torch.autograd.grad(out.sin().sum(), weights)
        assert all(map(torch.equal, actual, expected))


def test_a_cuda_graph_captures_it(models):
    x = torch.randn(16, 64, device="cuda")
    models.eval()
    with torch.no_grad():
        fusedops.parallel_stack(models, [x] * 4, 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = fusedops.parallel_stack(models, [x] * 4, 1)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.testing.assert_close(out, in_turn(models, [x] * 4, 1))


def test_an_error_leaves_the_stream_usable():
    def failing(x):
        raise ValueError("no")

    x = torch.randn(64, device="cuda")
    with pytest.raises(ValueError) as caught:
        fusedops.parallel_stack([torch.sin, failing, torch.sin], [x] * 3)
    assert "branch 1" in caught.value.__notes__[0]
    assert torch.equal(fusedops.parallel_stack(torch.sin, [x, x]), torch.stack([x.sin()] * 2))


def test_calls_within_branches_have_streams_of_their_own():
    seen = []

    def leaf(x):
        seen.append(torch.cuda.current_stream())
        return x.sin()

    def inner(x):
        return fusedops.parallel_stack(leaf, [x, x])

    x = torch.randn(64, device="cuda")
    out = fusedops.parallel_stack(inner, [x, x])
    assert torch.equal(out, x.sin().expand(2, 2, 64))
    assert torch.cuda.current_stream() not in seen and seen[0] != seen[1]


def test_numbers_on_the_cpu_may_stand_beside_inputs_and_devices_may_not_differ():
    x = torch.randn(64, device="cuda")
    out = fusedops.parallel_stack(torch.mul, [(x, torch.tensor(2.0)), (x, torch.tensor(3.0))])
    assert torch.equal(out, torch.stack([x * 2, x * 3]))
    with pytest.raises(RuntimeError, match="branch 1 has inputs on cpu, wanted cuda:0"):
        fusedops.parallel_stack(torch.sin, [x, x.cpu()])
