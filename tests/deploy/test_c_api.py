"""The C interface on numpy arrays: on the CPU, and its CUDA library over the emulator."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from c_interface import CLOSE, Binding, LayerNorm, Status, masked_scores, normal, padding, softmax
from processes import output, run_python
from simt.emulator import build

import fusedops
from fusedops.ops.registration import libraries

ROOT = Path(__file__).parents[2]
C_LIBRARY = libraries.LIB_DIR / "libfusedops_c.so"
CUDA_C_LIBRARY = libraries.LIB_DIR / "libfusedops_c_cuda.so"
C_LIBRARIES = [path for path in (C_LIBRARY, CUDA_C_LIBRARY) if path.exists()]
PAGE = (ROOT / "docs" / "c_interface.md").read_text()


@pytest.fixture(scope="module")
def cpu() -> Binding:
    return Binding(C_LIBRARY)


@pytest.fixture(scope="module", params=["cpu", "cuda on the emulator"])
def binding(request) -> Iterator[Binding]:
    yield Binding(C_LIBRARY if request.param == "cpu" else build.c_interface_library())


SHAPES = [(2, 3, 5, 7), (3, 2, 17, 33), (1, 2, 9, 128), (2, 1, 3, 1025), (1, 1, 1, 1)]


@pytest.mark.parametrize("mask_future", [False, True])
@pytest.mark.parametrize("hidden", [None, -np.inf, -1e8])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_softmax_is_that_of_float64_in_place(binding, shape, hidden, mask_future):
    inp, mask = normal(*shape), None if hidden is None else padding(shape[0], shape[3], hidden)
    expected = softmax(masked_scores(inp, mask, mask_future))
    binding.call("fusedops_attn_softmax", inp, mask, *shape, mask_future, None)
    np.testing.assert_allclose(inp, expected, **CLOSE)


def test_a_row_that_is_hidden_whole_becomes_zeros(binding):
    inp, mask = normal(2, 1, 3, 40), np.zeros((2, 40), np.float32)
    mask[1] = -np.inf
    binding.call("fusedops_attn_softmax", inp, mask, *inp.shape, False, None)
    assert not inp[1].any()
    np.testing.assert_allclose(inp[0].sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("rows, cols", [(5, 7), (40, 64), (3, 2049), (1, 1)])
def test_softmax_gradient_is_that_of_float64_in_place(binding, rows, cols):
    grad, probabilities = normal(rows, cols), softmax(normal(rows, cols, seed=1))
    product = grad.astype(np.float64) * probabilities
    expected = product - probabilities * product.sum(-1, keepdims=True)
    binding.call("fusedops_attn_softmax_bw", grad, probabilities, rows, cols, None)
    np.testing.assert_allclose(grad, expected, **CLOSE)


@pytest.mark.parametrize("rows, cols", [(5, 7), (70, 128), (3, 4100), (1, 1)])
def test_layernorm_and_its_gradients_are_those_of_float64(binding, rows, cols):
    norm = LayerNorm(rows, cols)
    norm.forward(binding)
    norm.backward(binding)
    for name, expected in norm.expected().items():
        tolerance = 4e-6 * max(1, np.abs(expected).max()) * (30 if cols == 1 else 1)
        np.testing.assert_allclose(getattr(norm, name), expected, 0, tolerance, err_msg=name)


def test_a_constant_row_keeps_its_gradient_finite(binding):
    norm = LayerNorm(3, 16)
    norm.inp[:] = 7
    norm.forward(binding)
    norm.backward(binding)
    np.testing.assert_array_equal(norm.ln_res, np.broadcast_to(norm.betta, (3, 16)))
    np.testing.assert_allclose(norm.vars, norm.eps, rtol=1e-6)
    expected = norm.expected()["inp_grad"]
    np.testing.assert_allclose(norm.inp_grad, expected, rtol=1e-5, atol=1e-3)


def assert_any_gradient_may_be_null(binding, rows, cols, wanted):
    """The others keep their bits, and what is not wanted is not written."""
    norm, part = LayerNorm(rows, cols), LayerNorm(rows, cols)
    norm.forward(binding)
    part.forward(binding)
    norm.backward(binding)
    for name in ("gamma_grad", "betta_grad", "inp_grad"):
        getattr(part, name)[:] = 5
    part.backward(binding, wanted)
    for want, name in zip(wanted, ("gamma_grad", "betta_grad", "inp_grad"), strict=True):
        expected = getattr(norm, name) if want else np.full_like(getattr(norm, name), 5)
        np.testing.assert_array_equal(getattr(part, name), expected)


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)])
def test_gradients_that_are_null_leave_the_others_their_bits(binding, wanted):
    assert_any_gradient_may_be_null(binding, 70, 33, wanted)


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)])
@pytest.mark.parametrize("rows, cols", [(1, 65_537), (3, 70_001)])
def test_gradients_of_long_rows_may_be_null_too(cpu, rows, cols, wanted):
    assert_any_gradient_may_be_null(cpu, rows, cols, wanted)


def test_the_functions_named_as_in_lightseq_are_the_same_with_its_epsilon(binding):
    scores, ours = normal(2, 2, 4, 9), normal(2, 2, 4, 9)
    mask = padding(2, 9, -1e8)
    binding.call("launch_attn_softmax", scores, mask, 2, 2, 4, 9, True, None)
    binding.call("fusedops_attn_softmax", ours, mask, 2, 2, 4, 9, True, None)
    np.testing.assert_array_equal(scores, ours)
    grad, our_grad = normal(16, 9), normal(16, 9)
    binding.call("launch_attn_softmax_bw", grad, scores, 16, 9, None)
    binding.call("fusedops_attn_softmax_bw", our_grad, ours, 16, 9, None)
    np.testing.assert_array_equal(grad, our_grad)

    theirs, norm = LayerNorm(6, 20, eps=1e-8), LayerNorm(6, 20, eps=1e-8)
    norm.forward(binding)
    norm.backward(binding)
    arrays = (theirs.ln_res, theirs.vars, theirs.means, theirs.inp, theirs.gamma, theirs.betta)
    binding.call("launch_layernorm", *arrays, 6, 20, None)
    grads = (theirs.gamma_grad, theirs.betta_grad, theirs.inp_grad)
    saved = (theirs.inp, theirs.gamma, theirs.betta, theirs.vars, theirs.means)
    binding.call("launch_layernorm_bw", *grads, theirs.out_grad, *saved, 6, 20, None, None)
    for name in norm.expected():
        np.testing.assert_array_equal(getattr(theirs, name), getattr(norm, name))


HEADER = (ROOT / "csrc/include/fusedops/c_api.h").read_text()
#: The parameters of each function, in order.
PARAMETERS = {
    function: re.findall(r"(\w+)[,)]", parameters)
    for function, parameters in re.findall(r"fusedops_status (fusedops_\w+)(\([^)]*\))", HEADER)
}
FUNCTIONS = list(PARAMETERS)
SHAPES_OF_TWO_ROWS = {
    **dict.fromkeys(("inp", "out_grad", "soft_inp", "ln_res", "inp_grad"), (2, 3)),
    **dict.fromkeys(("vars", "means"), (2,)),
    **dict.fromkeys(("scale", "bias", "gamma", "gamma_grad", "betta_grad"), (3,)),
}


def arguments(function: str) -> dict:
    """Valid arguments, in order."""
    values = {name: np.ones(shape, np.float32) for name, shape in SHAPES_OF_TWO_ROWS.items()}
    values |= {"batch_size": 2, "nhead": 1, "from_len": 1, "to_len": 3, "rows": 2}
    values |= {"softmax_len": 3, "hidden_dim": 3, "eps": 1e-5, "mask_future": False}
    values |= {"attn_mask": None, "stream": None}
    return {name: values[name] for name in PARAMETERS[function]}


MAY_BE_NULL = {"attn_mask", "gamma_grad", "betta_grad", "inp_grad", "stream"}
ARRAYS = [
    (function, name)
    for function in FUNCTIONS
    for name, value in arguments(function).items()
    if isinstance(value, np.ndarray) or name == "attn_mask"
]
SIZES = [
    (function, name)
    for function in FUNCTIONS
    for name, value in arguments(function).items()
    if type(value) is int
]


def refused(binding: Binding, function: str, status: int, message: str, **changes) -> None:
    args = arguments(function) | changes
    before = {name: a.copy() for name, a in args.items() if isinstance(a, np.ndarray)}
    assert binding.status(function, *args.values()) == status
    assert binding.text("fusedops_last_error") == f"{function}: {message}"
    for name, array in before.items():
        np.testing.assert_array_equal(args[name], array)


@pytest.mark.parametrize("function, name", [a for a in ARRAYS if a[1] not in MAY_BE_NULL])
def test_a_null_pointer_is_named(binding, function, name):
    count = arguments(function)[name].size
    refused(
        binding, function, Status.POINTER, f"{name} is NULL, wanted {count} floats", **{name: None}
    )


@pytest.mark.parametrize("function, name", ARRAYS)
def test_a_pointer_that_is_not_aligned_is_named(binding, function, name):
    message = f"{name} does not start at a multiple of 4 bytes, as floats do"
    refused(binding, function, Status.POINTER, message, **{name: ctypes.c_void_p(4098)})


@pytest.mark.parametrize("function, name", SIZES)
def test_a_negative_size_is_named(binding, function, name):
    least = 1 if name == "hidden_dim" else 0
    refused(binding, function, Status.SIZE, f"{name} is -3, wanted at least {least}", **{name: -3})


def test_sizes_that_overflow_are_refused(binding):
    huge = dict.fromkeys(("batch_size", "nhead", "from_len", "to_len"), 2**31 - 1)
    message = "the sizes multiply to more than memory can hold"
    refused(binding, "fusedops_attn_softmax", Status.SIZE, message, **huge)


@pytest.mark.parametrize(
    "eps, shown", [(float("nan"), "nan"), (-1e-5, "-0.000010"), (float("inf"), "inf")]
)
def test_an_eps_that_is_no_finite_number_is_shown(binding, eps, shown):
    message = f"eps is {shown}, wanted a finite number >= 0"
    refused(binding, "fusedops_layernorm", Status.EPS, message, eps=eps)


def test_a_row_without_elements_has_no_mean(binding):
    message = "hidden_dim is 0, wanted at least 1"
    refused(binding, "fusedops_layernorm", Status.SIZE, message, hidden_dim=0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_cpu_takes_no_stream(cpu, function):
    message = "stream is not NULL, but this library computes on the CPU; "
    message += "libfusedops_c_cuda takes CUDA streams"
    refused(cpu, function, Status.STREAM, message, stream=ctypes.c_void_p(1))


def test_two_streams_that_differ_are_refused(binding):
    args = [*[None] * 9, 2, 3, None, ctypes.c_void_p(8)]
    assert binding.status("launch_layernorm_bw", *args) == Status.STREAM
    assert "stream_1 and stream_2 differ" in binding.text("fusedops_last_error")


@pytest.mark.parametrize("function, name", SIZES)
def test_no_elements_need_no_arrays(binding, function, name):
    if name == "hidden_dim":
        return
    args = arguments(function) | {name: 0}
    for array in (array for of, array in ARRAYS if of == function):
        args[array] = None
    binding.call(function, *args.values())


def test_parameters_of_no_rows_have_gradients_of_zero(binding):
    gamma_grad, betta_grad = normal(2, 3)
    nothing = [None] * 6
    binding.call("fusedops_layernorm_bw", gamma_grad, betta_grad, *nothing, 0, 3, None)
    assert not gamma_grad.any() and not betta_grad.any()


def test_every_status_has_its_own_words(binding):
    words = {binding.text("fusedops_status_string", status) for status in range(8)}
    assert len(words) == 8 and "success" in words
    for number in (-1, 8, 1000):
        assert binding.text("fusedops_status_string", number) == "unknown status"


def test_a_row_alone_and_in_a_batch_has_equal_bits(binding):
    inp, mask = normal(2, 3, 4, 77), padding(2, 77, -np.inf)
    alone = inp[1, 2, 3].copy()
    binding.call("fusedops_attn_softmax", inp, mask, *inp.shape, False, None)
    binding.call("fusedops_attn_softmax", alone, mask[1].copy(), 1, 1, 1, 77, False, None)
    np.testing.assert_array_equal(alone, inp[1, 2, 3])


# (2, 8, 64, 100) is work for more than one thread, (1, 1, 2, 70_000) rows that threads share.
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 8, 64, 100), (1, 1, 2, 70_000)])
def test_bits_are_those_of_the_operators_of_torch(cpu, shape):
    inp, grad = normal(*shape), normal(*shape, seed=1)
    mask = padding(shape[0], shape[3], -1e8)
    probabilities = fusedops.masked_softmax(
        torch.from_numpy(inp), torch.from_numpy(mask)[:, None, None], masked_rows="zero"
    )
    cpu.call("fusedops_attn_softmax", inp, mask, *shape, False, None)
    np.testing.assert_array_equal(inp, probabilities.numpy())
    rows, cols = inp.size // shape[3], shape[3]
    expected = torch.ops.fusedops.softmax_backward(
        torch.from_numpy(grad), probabilities, -1, torch.float32
    )
    norm = LayerNorm(rows, cols)
    norm.forward(cpu)
    x, gamma, betta = map(torch.from_numpy, (norm.inp, norm.gamma, norm.betta))
    normed = fusedops.layer_norm(x, (cols,), gamma, betta, norm.eps)
    np.testing.assert_array_equal(norm.ln_res, normed.numpy())
    cpu.call("fusedops_attn_softmax_bw", grad, inp, rows, cols, None)
    np.testing.assert_array_equal(grad, expected.numpy())


def test_calls_from_many_threads_at_once_do_not_mix(cpu):
    def run(seed: int) -> np.ndarray:
        inp = normal(2, 8, 64, 100, seed=seed)
        cpu.call("fusedops_attn_softmax", inp, None, *inp.shape, False, None)
        return inp

    alone = [run(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for one, other in zip(alone, pool.map(run, range(6)), strict=True):
            np.testing.assert_array_equal(one, other)


def python(code: str, **variables: str) -> subprocess.CompletedProcess:
    return run_python("-c", code, PYTHONPATH=str(ROOT), **variables)


def blocks(language: str) -> list[str]:
    """The blocks of docs/c_interface.md in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_another_framework_computes_without_torch():
    checks = """
import sys
assert "torch" not in sys.modules and "fusedops" not in sys.modules
assert "libtorch" not in open("/proc/self/maps").read()
assert "libfusedops_c.so" in open("/proc/self/maps").read()
"""
    result = python(blocks("python")[0] + checks)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("library", C_LIBRARIES, ids=lambda path: path.name)
def test_a_library_needs_neither_torch_nor_python(library):
    # ldd ends each line with a load address, whose digits may spell "c10".
    needed = re.sub(r"\(0x\w+\)", "", output("ldd", library))
    assert "libc.so" in needed and "not found" not in needed
    assert not re.search("torch|c10|python", needed)


def test_there_is_a_library_for_every_device_that_was_built():
    assert CUDA_C_LIBRARY.exists() == libraries.build_info()["cuda"]["built"]


@pytest.mark.skipif(
    not CUDA_C_LIBRARY.exists() or torch.cuda.is_available(), reason="of a CUDA build without a GPU"
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_without_a_gpu_every_function_says_so(function):
    cuda = Binding(CUDA_C_LIBRARY)
    assert cuda.status(function, *arguments(function).values()) == Status.DEVICE
    assert cuda.text("fusedops_last_error").startswith(f"{function}: CUDA: ")


def test_a_wrong_instruction_set_is_a_status():
    code = f"""
import ctypes
lib = ctypes.CDLL({str(C_LIBRARY)!r})
lib.fusedops_last_error.restype = ctypes.c_char_p
row = (ctypes.c_float * 3)(1, 2, 3)
print(lib.fusedops_attn_softmax(row, None, 1, 1, 1, 3, 0, None), lib.fusedops_last_error())
"""
    result = python(code, FUSEDOPS_CPU_ISA="sse9")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        f"{Status.ENVIRONMENT:d} b\"fusedops_attn_softmax: FUSEDOPS_CPU_ISA is 's"
    )


@pytest.mark.parametrize("threads", ["1", "2"])
def test_memory_that_runs_out_is_a_status_and_the_next_call_works(threads):
    code = f"""
import ctypes, re, resource
lib = ctypes.CDLL({str(C_LIBRARY)!r})
cols = 4_000_000
scores = (ctypes.c_float * (2 * cols))()
def softmax(cols):
    return lib.fusedops_attn_softmax(scores, None, 1, 1, 2, cols, 0, None)
first = softmax(50_000)  # starts the threads
size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + 2**20, -1))
print(first, softmax(cols), softmax(50_000))
"""
    result = python(code, OMP_NUM_THREADS=threads)
    assert result.returncode == 0, result.stderr
    statuses = [Status.SUCCESS, Status.MEMORY, Status.SUCCESS]
    assert list(map(int, result.stdout.split())) == statuses


def test_the_documented_program_in_c_builds_and_runs(tmp_path):
    (tmp_path / "main.c").write_text(blocks("c")[0])
    (tmp_path / "CMakeLists.txt").write_text(blocks("cmake")[0])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = f"set -e\n{blocks('sh')[0]}./build/c_interface"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("0.0900 0.2447 0.6652 0.6652 0.2447 0.0900 ")
