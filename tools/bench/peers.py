"""Runs models in OpenVINO and ONNX Runtime (the peers), if they are installed, for a comparison.

Both take the model in float32, captured by `torch.export`. OpenVINO can be set to compute in
bfloat16, with float32 outputs. ONNX Runtime has no bfloat16 kernels for the CPU.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from tools.bench.zoo import main_tensors

OPENVINO, ONNX_RUNTIME = "openvino", "onnxruntime"
_OPENVINO_PRECISION = {torch.float32: "f32", torch.bfloat16: "bf16"}

Outputs = list[Tensor]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Peer:
    """A way to run a model without torch.

    Args:
        packages: the packages that the peer needs.
        dtypes: the dtypes in which it can compute on a CPU.
        compile: a function of a captured model, its inputs, the dtype and the number of threads.
            Returns a function without arguments that computes the outputs.
    """

    packages: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    compile: Callable[[ExportedProgram, Tensors, torch.dtype, int], Callable[[], Outputs]]

    @property
    def missing(self) -> list[str]:
        """Returns the packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]

    def takes(self, dtype: torch.dtype) -> bool:
        """Returns whether the peer is installed and can compute in `dtype`."""
        return dtype in self.dtypes and not self.missing

    def prepare(
        self, model: nn.Module, inputs: dict[str, Any], dtype: torch.dtype, threads: int
    ) -> Callable[[], Outputs]:
        """Sets `model` to eval mode, and returns a function that runs it in the peer on these
        float32 inputs. The peer computes in `dtype`."""
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        others = {name: value for name, value in inputs.items() if name not in tensors}
        with _quiet_exporter(), torch.no_grad():
            program = torch.export.export(_OfTensors(model.eval(), others), (), tensors)
            return self.compile(program, tensors, dtype, threads)


class _OfTensors(nn.Module):
    """A model whose arguments and results are only tensors. Its other arguments are fixed."""

    def __init__(self, model: nn.Module, others: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.others = model, others

    def forward(self, **tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(main_tensors(self.model(**tensors, **self.others)))


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Suppresses warnings about optional packages and torch's own deprecations."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _compile_openvino(
    program: ExportedProgram, inputs: Tensors, dtype: torch.dtype, threads: int
) -> Callable[[], Outputs]:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": _OPENVINO_PRECISION[dtype],
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    if dtype == torch.bfloat16 and "BF16" not in core.get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    ):
        raise RuntimeError("OpenVINO computes in bfloat16 on CPUs with instructions for it alone")
    compiled = core.compile_model(openvino.convert_model(program), "CPU", settings)
    request = compiled.create_infer_request()
    arrays = [tensor.numpy() for tensor in inputs.values()]

    def run() -> Outputs:
        results = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(results[output]) for output in compiled.outputs]

    return run


def _compile_onnx_runtime(
    program: ExportedProgram, inputs: Tensors, dtype: torch.dtype, threads: int
) -> Callable[[], Outputs]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # Threads that spin while they wait for work would take cores from the next provider.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(program, (), file, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    arrays = {argument.name: inputs[argument.name].numpy() for argument in session.get_inputs()}
    run = partial(session.run, None, arrays)
    return lambda: [torch.from_numpy(result) for result in run()]


PEERS = {
    OPENVINO: Peer(("openvino",), (torch.float32, torch.bfloat16), _compile_openvino),
    ONNX_RUNTIME: Peer(
        ("onnxruntime", "onnx", "onnxscript"), (torch.float32,), _compile_onnx_runtime
    ),
}


def not_installed() -> list[str]:
    """Returns a line for each peer that is not installed."""
    return [
        f"{name} is left out: {', '.join(peer.missing)} is not installed; "
        "run: pip install fusedops[peers]"
        for name, peer in PEERS.items()
        if peer.missing
    ]
