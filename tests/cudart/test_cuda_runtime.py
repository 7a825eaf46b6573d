"""The package's host code for CUDA as nvcc compiles it, on a stand-in for the runtime.

The stand-in refuses every launch that the runtime or the device would, and runs the others on the
emulator. These tests read the objects of `make cuda-check`.
"""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from simt import families
from simt.emulator import build as emulator_build
from simt.emulator.library import Emulator
from simt.judge import same_bits
from simt.sanitized import run_sanitizer_command

from . import build, library, races
from .library import AMPERE, DEVICES, HOPPER, PARTITION, SMALL, WITHOUT_CLUSTERS, Cuda, CudaError
from .operations import OPERATIONS, Operation

pytestmark = pytest.mark.nvcc

#: Errors of CUDA.
OUT_OF_MEMORY, OUT_OF_RESOURCES, CAPTURE_BROKEN = 2, 701, 901

of_every_operation = pytest.mark.parametrize("name", OPERATIONS)


def finish(cuda: Cuda, operation: Operation, stream: int | None = None) -> None:
    """Starts an operation, and checks what it leaves."""
    operation.start(stream)
    cuda.synchronize(stream)
    operation.check()


def run(cuda: Cuda, name: str, device: int) -> list[library.Launch]:
    """Runs an operation, checks its results, and returns its launches."""
    cuda.use_device(device)
    operation, allocations = OPERATIONS[name](cuda), cuda.allocations()
    finish(cuda, operation)
    assert cuda.allocations() == allocations and cuda.last_error() == 0
    return cuda.launches()


@of_every_operation
def test_results_are_those_of_float64_on_every_device(cuda, name):
    for device in range(len(DEVICES)):
        launches = run(cuda, name, device)
        assert launches and {launch.device for launch in launches} == {device}


def test_the_host_code_that_nvcc_compiles_picks_the_kernels_and_bits_of_the_emulated_one(cuda):
    emulator = Emulator(emulator_build.c_interface_library())
    seen = set()
    for case in families.racing_cases(emulator):
        emulated = families.prepare(emulator, case, families.inputs(case))
        kernels = {name.split("<")[0] for name in emulator.kernels_of(emulated.args)}
        if kernels <= seen:
            continue
        seen |= kernels
        emulator.launch(emulated.args)
        cuda.use_device(HOPPER if getattr(case, "clusters", False) else AMPERE)
        shipped = families.run(cuda, case)
        assert {launch.kernel for launch in cuda.launches()} == kernels, case
        assert same_bits(shipped, emulated.outputs()), case
    assert len(seen) > 20


def clusters_of(launches: list[library.Launch]) -> int:
    return max(launch.cluster for launch in launches)


def test_each_device_gets_the_clusters_and_the_memory_that_it_has(cuda):
    """Also after the other devices have been asked."""
    clusters = {HOPPER: 16, AMPERE: 1, SMALL: 1, PARTITION: 8, WITHOUT_CLUSTERS: 1}
    strip = "spatial softmax of the most shared memory"
    for device in [*clusters, *reversed(clusters)]:
        assert clusters_of(run(cuda, "softmax of long rows", device)) == clusters[device]
        (launch,) = run(cuda, strip, device)
        assert launch.dynamic_shared == (0 if device == SMALL else 96 << 10)


def test_kernels_overlap_the_launch_ahead_on_devices_that_can(cuda):
    name = "norm backward"
    overlaps = {device: run(cuda, name, device)[-1].overlaps for device in range(len(DEVICES))}
    assert overlaps == {device: DEVICES[device].major >= 9 for device in overlaps}


def test_a_stream_of_another_device_is_refused(cuda):
    cuda.use_device(HOPPER)
    stream = cuda.stream()
    cuda.use_device(AMPERE)
    for name in ("attn_softmax", "softmax"):
        with pytest.raises(CudaError):
            OPERATIONS[name](cuda).start(stream)
        assert cuda.last_error() == 0
    cuda.use_device(HOPPER)
    OPERATIONS["attn_softmax"](cuda).start(stream)


# --- refusals ------------------------------------------------------------------------------------


def start_with_refusal(cuda: Cuda, operation, call: int, error: int) -> str | None:
    """Starts an operation whose ``call``-th call of the runtime fails. Returns that call's name,
    or None if there are fewer. The results are right unless the package returns an error."""
    cuda.refuse(call, error)
    try:
        operation.start()
    except CudaError:
        is_done = False
    else:
        is_done = True
    refused = cuda.refused_name()
    cuda.refuse(0, 0)
    assert cuda.last_error() == 0, f"{refused} leaves an error behind"
    assert is_done or refused, "an error without a reason"
    cuda.synchronize()
    if is_done:
        operation.check()
    cuda.launches()
    return refused


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, OUT_OF_RESOURCES])
@of_every_operation
def test_a_call_that_fails_is_an_error_or_a_fallback_and_the_next_launch_is_as_ever(
    new, name, error
):
    for device in (HOPPER, AMPERE):
        usual = run(new(), name, device)
        for call in itertools.count(1):
            cuda = new()
            cuda.use_device(device)
            refused = start_with_refusal(cuda, OPERATIONS[name](cuda), call, error)
            if refused is None:
                break
            assert run(cuda, name, device) == usual, f"after {refused} has failed"


@of_every_operation
def test_an_error_that_others_left_is_not_the_package_s(cuda, name):
    cuda.use_device(HOPPER)
    for _ in range(2):
        operation = OPERATIONS[name](cuda)
        with pytest.raises(CudaError):
            cuda.use_device(len(DEVICES))
        finish(cuda, operation)


# --- captures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_warm", [False, True])
@of_every_operation
def test_an_operation_is_captured_and_launched_again(cuda, name, is_warm):
    cuda.use_device(HOPPER)
    stream, operation = cuda.stream(), OPERATIONS[name](cuda)
    if is_warm:
        finish(cuda, operation, stream)
    graph = cuda.capture(stream, partial(operation.start, stream))
    assert cuda.allocations() == 0
    for _ in range(2):
        operation.reset()
        cuda.launch_graph(graph, stream)
        operation.check()


def test_what_a_capture_cannot_hold_is_refused(cuda):
    cuda.use_device(HOPPER)
    stream, operation = cuda.stream(), OPERATIONS["attn_softmax"](cuda)
    with pytest.raises(CudaError, match=str(CAPTURE_BROKEN)):
        cuda.capture(stream, lambda: cuda.cuda.cudaStreamSynchronize(stream))
    assert cuda.last_error() == CAPTURE_BROKEN

    def start_in_the_default_stream() -> None:
        with pytest.raises(CudaError):
            operation.start()
        assert cuda.last_error() == 0

    with pytest.raises(CudaError, match=str(CAPTURE_BROKEN)):
        cuda.capture(stream, start_in_the_default_stream)
    cuda.last_error()
    finish(cuda, operation, stream)


# --- threads -------------------------------------------------------------------------------------


def test_threads_that_share_a_kernel_with_other_sizes_are_not_refused(cuda):
    """A launch must not lower the limit of shared memory that other launches of the kernel need."""
    assert races.failed_launches(cuda, 200_000) == [0, 0]


def test_thread_sanitizer_finds_nothing_in_the_host_code():
    done = run_sanitizer_command(
        [sys.executable, "-m", "cudart.races", str(build.watched_library())],
        " ".join(emulator_build.sanitizer_runtimes("tsan")),
    )
    assert done.returncode == 0 and set(done.stdout.splitlines()) == {"[0, 0]"}, done.stderr[:8000]


def test_threads_on_two_devices_get_their_own_results(cuda):
    def work(first: int) -> None:
        cuda.use_device((HOPPER, AMPERE)[first % 2])
        stream = cuda.stream()
        names = list(OPERATIONS)
        for name in names[first:] + names[:first]:
            finish(cuda, OPERATIONS[name](cuda), stream)
            assert cuda.last_error() == 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert cuda.allocations() == 0


# --- the stand-in itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 64},
        {"registers": 600},
        {"static_shared_bytes": 228 << 10},
        {"parameters": 8, "parameter_bytes": (5000,) * 8},
        {"arch": 100},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_launch_that_the_machine_code_does_not_allow_is_refused(cuda, change):
    cuda.describe_kernels(**change)
    with pytest.raises(CudaError):
        OPERATIONS["softmax"](cuda).start()
    cuda.describe_kernels()
    run(cuda, "softmax", HOPPER)


def test_kernels_have_the_limits_of_their_machine_code():
    kernels = library.kernels().values()
    assert all(0 < code.registers <= 255 for kernel in kernels for code in kernel.codes)
    assert all(0 < code.threads <= 1024 for kernel in kernels for code in kernel.codes)
    of_clusters = [kernel for kernel in kernels if kernel.short_name.endswith("_cluster")]
    assert of_clusters and all(code.arch >= 90 for k in of_clusters for code in k.codes)
