"""Launches that a device refuses are counted, and `python -m fusedops env` tells of them."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from simt import families
from simt.cases.rows import Case

from fusedops.cli import env, launches
from fusedops.ops.registration import libraries

from .library import DEVICES, HOPPER, PARTITION, WITHOUT_CLUSTERS, Cuda
from .operations import OPERATIONS, Operation

pytestmark = pytest.mark.nvcc

OUT_OF_RESOURCES = 701
#: The launches of each operation that has clusters.
OF_CLUSTERS = {
    "softmax of long rows": {"SoftmaxForward"},
    "attn_softmax of long rows": {"MaskedSoftmaxForward"},
    "attn_softmax_bw of long rows": {"SoftmaxBackward"},
    "layernorm of long rows": {"NormForward", "NormBackward"},
}


def refused(cuda: Cuda) -> set[tuple[int, str, int]]:
    return {(each.device, each.launch, each.blocks) for each in launches.refusals(cuda.cuda)}


@pytest.mark.parametrize("name", OF_CLUSTERS)
def test_what_a_device_refuses_is_counted_for_that_device(cuda, name):
    cuda.execute(False)
    for device in range(len(DEVICES)):
        cuda.use_device(device)
        OPERATIONS[name](cuda).start()
    found = refused(cuda)
    assert {device for device, _, _ in found} <= {PARTITION, WITHOUT_CLUSTERS}
    assert {each[1] for each in found if each[0] == WITHOUT_CLUSTERS} == OF_CLUSTERS[name]
    assert all(blocks == 16 for device, _, blocks in found if device == PARTITION)


def started(cuda: Cuda) -> Operation:
    """A softmax of long rows, which has run and left nothing for the next one to ask."""
    cuda.use_device(HOPPER)
    operation = OPERATIONS["softmax of long rows"](cuda)
    operation.start()
    return operation


def number_of_the_launch(cuda: Cuda, operation: Operation) -> int:
    """Which call of the runtime is the launch of an operation."""
    for call in itertools.count(1):
        cuda.refuse(call, OUT_OF_RESOURCES)
        operation.start()
        if cuda.refused_name() == "cudaLaunchKernelExC":
            return call


def test_a_launch_that_is_refused_once_is_counted_once(new):
    another, cuda = new(), new()
    call = number_of_the_launch(another, started(another))
    operation = started(cuda)
    assert launches.refusals(cuda.cuda) == []
    cuda.refuse(call, OUT_OF_RESOURCES)
    for _ in range(2):
        operation.start()
    cuda.synchronize()
    operation.check()
    (refusal,) = launches.refusals(cuda.cuda)
    assert refusal == (HOPPER, "SoftmaxForward", 16, OUT_OF_RESOURCES, 1)


@pytest.fixture
def on_stand_in(cuda, monkeypatch) -> None:
    """The devices of the stand-in are what torch sees, and its library is the package's."""
    case = Case("softmax_forward", "bfloat16", "bfloat16", 1, launches.CLUSTER_COLS, 8)
    prepared = families.prepare(cuda, case, families.inputs(case))
    cuda.execute(False)

    def launch(device: int) -> None:
        cuda.use_device(device)
        cuda.enqueue(prepared.args)

    told = {
        "is_available": lambda: True,
        "device_count": lambda: len(DEVICES),
        "get_device_name": "NVIDIA H100 ({})".format,
        "get_device_capability": lambda index: (DEVICES[index].major, DEVICES[index].minor),
        "get_device_properties": lambda index: SimpleNamespace(
            shared_memory_per_block_optin=DEVICES[index].shared_bytes
        ),
    }
    for name, answer in told.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    # The package may be built for one architecture; the stand-in runs its code on every device.
    monkeypatch.setattr(env, "code_for", lambda capability, architectures: architectures)
    monkeypatch.setattr(libraries, "has_kernels", lambda device_type: True)
    monkeypatch.setattr(launches, "refusals", partial(launches.refusals, cuda.cuda))
    monkeypatch.setattr(launches, "_launch_long_row", launch)


def test_env_says_of_each_gpu_which_clusters_it_launches_and_what_it_has_refused(on_stand_in):
    for _ in range(2):
        devices = env.probe_devices()
        told = [devices[f"cuda:{index}"]["launches"] for index in range(len(DEVICES))]
        assert [each["clusters"] for each in told] == [
            "of up to 16 blocks",
            *2 * ["none: they need capability 9.0"],
            "of up to 8 blocks",
            "none: the GPU refuses them",
        ]
    assert [each["shared memory"] for each in told[:3]] == [
        f"{size} KB a block" for size in (227, 163, 99)
    ]
    without, partition, none = told[:3], told[PARTITION], told[WITHOUT_CLUSTERS]
    assert all(each["refused"] is None for each in without)
    assert partition["refused"].startswith("SoftmaxForward in clusters of 16: 2 times, ")
    assert [text.split(":")[0] for text in none["refused"].split("; ")] == [
        f"SoftmaxForward in clusters of {blocks}" for blocks in (8, 16)
    ]
