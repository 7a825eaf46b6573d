"""Code that is compiled for a CPU calls our kernels, and not `torch.ops`."""

import re

import pytest
import torch
from torch._inductor.utils import fresh_cache, run_and_get_code

import fusedops


def _code(function, *args, backend="fusedops", options=None):
    with fresh_cache():
        compiled = torch.compile(function, backend=backend, options=options)
        result, codes = run_and_get_code(compiled, *args)
    torch.testing.assert_close(result, function(*args))
    return "\n".join(codes)


def test_a_subgraph_calls_kernels():
    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: (x @ x).softmax(-1), lambda x: x.relu(), (x,))

    code = _code(branches, torch.ones(8, 8))
    assert "fusedops_kernels.softmax_(" in code and code.count("as fusedops_kernels\n") == 1


def test_an_op_that_takes_a_list_of_tensors_is_called_too():
    def stacked(x, y):
        return fusedops.stack_softmax([x @ y, y], -1)

    assert "fusedops_kernels._stack_softmax(" in _code(stacked, torch.randn(8, 8), torch.ones(8, 8))


def test_a_graph_of_any_size_calls_kernels_with_its_sizes():
    def of_square(x):
        return fusedops.layer_norm(x @ x.mT, x.shape[:1]) @ x

    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    assert "fusedops_kernels._layer_norm_output(" in (code := _code(of_square, x)) and "[s" in code


def test_plain_inductor_calls_our_ops_as_before():
    """Such code may be kept by Inductor's cache, and run where fusedops has another version."""
    code = _code(lambda x: fusedops.softmax(x @ x, -1), torch.randn(8, 8), backend="inductor")
    assert "torch.ops.fusedops." in code and "fusedops_kernels" not in code


def test_cpp_code_calls_kernels_with_arguments_of_every_kind_and_passes_their_errors_on():
    mask, target = torch.rand(8, 8) < 0.8, torch.arange(8)

    def gradient(x, target):
        y, total = fusedops.add_layer_norm(x, x.cos(), (8,))
        scores = fusedops.masked_softmax(y @ x.mT, mask | (target[:, None] == target), causal=True)
        wide = fusedops.softmax(scores.half(), 0, dtype=torch.float32)
        mean = fusedops.stack_softmax([total @ wide, y @ y.mT], -1).square().mean()
        loss = mean + fusedops.cross_entropy(y, target, label_smoothing=0.1)
        return torch.autograd.grad(loss, x)[0]

    x = torch.randn(8, 8, requires_grad=True)
    code = _code(gradient, x, target, options={"cpp_wrapper": True})
    calls = set(re.findall(r"CHECK\(aoti_torch_fusedops_(\w+)", code))
    forward = {"add_layer_norm", "masked_softmax_", "_softmax", "_stack_softmax", "_cross_entropy"}
    assert calls == forward | {
        "_add_layer_norm_backward",
        "masked_softmax_backward_",
        "_softmax_backward",
        "softmax_backward_",
        "_cross_entropy_backward",
    }
    compiled = torch.compile(gradient, backend="fusedops", options={"cpp_wrapper": True})
    with pytest.raises(RuntimeError, match="target of row 1 is 9, wanted a class in"):
        compiled(x, target.where(target != 1, 9))
