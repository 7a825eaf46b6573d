"""Every operator with each of its arguments made wrong in turn, as its schema says.

Wanted is a typed error that names the operator and the argument, in the words of the fake kernel,
with nothing written; or the right result.
"""

import pytest
import torch
from op_bad_calls import OPS, flattened, originals, plain, rows, schema, valid_arguments

from fusedops.ops.registration import libraries


@pytest.mark.parametrize("op", OPS)
def test_a_bad_call_is_refused_by_name_or_gives_the_right_result(op, judge):
    table = rows(op)
    assert len(table) > 20
    assert {row.argument for row in table} == {given.name for given in schema(op).arguments}
    judge(table)


def test_a_cuda_tensor_without_cuda_kernels_is_refused_with_the_reason():
    """The tensors dispatch to the CUDA key, as CUDA tensors would."""
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    for op in OPS:
        if libraries.has_kernels("cuda"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fusedops::{op}", "CUDA")
            continue
        message = rf"^{libraries.function_name(op)} was given a CUDA tensor, but .*\w"
        with pytest.raises(RuntimeError, match=message):
            getattr(torch.ops.fusedops, op).default.redispatch(cuda, *valid_arguments(op).values())


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_refuses_tensors_of_two_devices(op):
    """Called at the CPU's key, as the dispatcher gives a call with a tensor on meta to the fake
    kernel."""
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    tensors = {name: flattened(value) for name, value in originals(op).items()}
    if sum(map(len, tensors.values())) == 1:
        return
    for name in filter(tensors.get, tensors):
        given = {n: plain(value) for n, value in originals(op).items()}
        if isinstance(given[name], list):
            given[name][-1] = given[name][-1].to("meta")
        else:
            given[name] = given[name].to("meta")
        with pytest.raises(RuntimeError, match="wanted .+ as .+ is"):
            getattr(torch.ops.fusedops, op).default.redispatch(cpu, *given.values())


@pytest.mark.parametrize("op", OPS)
def test_a_tensor_whose_storage_was_freed_is_refused_by_name(op):
    """Its address is null, which kernels take for a tensor that is absent. FSDP frees storages."""
    for name in (name for name, value in originals(op).items() if flattened(value)):
        given = {n: plain(value) for n, value in originals(op).items()}
        *_, last = flattened(given[name])
        last.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=f"the storage of {name} has been freed"):
            getattr(torch.ops.fusedops, op).default(*given.values())
