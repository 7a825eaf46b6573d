"""The library loads beside this torch, and its kernels take CUDA tensors."""

import pytest
import torch

import fusedops
from fusedops.cli import env
from fusedops.ops.registration import libraries


def test_the_cuda_library_is_loaded():
    assert libraries.cuda_status() == "the CUDA kernels are loaded"
    assert str(libraries.CUDA_LIBRARY) in libraries.loaded_libraries()


def test_the_build_has_code_for_every_gpu():
    built = libraries.build_info()["cuda"]["architectures"]
    newest_with_ptx = max((int(arch) for arch in built if arch.isdecimal()), default=10**6)
    for device in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(device)
        same_major = [a for a in built if int(a.partition("-")[0].rstrip("af")) // 10 == major]
        assert same_major or major * 10 + minor >= newest_with_ptx


def test_env_tells_which_clusters_every_gpu_launches():
    for device in range(torch.cuda.device_count()):
        told = env.probe_devices()[f"cuda:{device}"]["launches"]
        usual = ("of up to 16 blocks", "none: they need capability 9.0")
        assert told["clusters"] in usual or "SoftmaxForward" in told["refused"]


def test_results_stay_on_the_device_of_the_input():
    x = torch.randn(4, 8, device="cuda")
    outputs = [
        fusedops.softmax(x, -1),
        fusedops.log_softmax(x, -1),
        *torch.ops.fusedops.layer_norm(x, [8], None, None, 1e-5),
    ]
    assert all(output.device == x.device for output in outputs)


def test_a_weight_on_another_device_is_an_error_that_names_both():
    x = torch.randn(4, 8, device="cuda")
    with pytest.raises(RuntimeError, match="weight is on cpu, wanted cuda:0"):
        fusedops.layer_norm(x, [8], torch.ones(8))


def test_empty_inputs_launch_nothing():
    x = torch.randn(0, 8, device="cuda")
    assert fusedops.softmax(x, -1).shape == (0, 8)
    assert fusedops.layer_norm(x, [8]).shape == (0, 8)
    torch.cuda.synchronize()
