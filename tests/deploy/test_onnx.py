"""fusedops.integrations.onnx: ONNX Runtime computes what the operators compute."""

from __future__ import annotations

import math
import re
from collections import Counter

import onnxruntime
import pytest
import torch
from exhaustive import beyond
from oracle import DTYPES
from processes import run_python
from tiny_models import tiny
from torch import nn

import fusedops
from fusedops import masked_softmax
from fusedops.integrations import onnx
from fusedops.ops.registration import libraries

ops = torch.ops.fusedops
INF = math.inf


class Calls(nn.Module):
    """Every function of a dict on the same inputs, with all results in a dict, numbered."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *inputs):
        results = {name: f(*inputs) for name, f in self.functions.items()}
        return {
            f"{name} {i}": result
            for name, several in results.items()
            for i, result in enumerate(several if isinstance(several, tuple) else [several])
        }


def outputs(model, inputs, **options):
    """The program, and what ONNX Runtime makes of the inputs."""
    program = onnx.export(torch.export.export(model, inputs), verbose=False, **options)
    return program, program(*inputs)


CLASSES = torch.arange(30).view(2, 3, 5) % 8


def _linear(x, r):
    """Rows, the weight of 11 classes, and the class of each row."""
    return x.flatten(0, 2), r.flatten(0, 2)[:11], CLASSES.flatten()


def _statistics(numbers, x):
    """In the dtype that the losses of x have."""
    return numbers.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


#: Functions of x and r [2, 3, 5, 8], w and b [8], a bool mask m and a float mask f [2, 1, 5, 8],
#: which hide one row whole, and a bias s [1, 8].
OPS = {
    "softmax as float64": lambda x, *_: fusedops.softmax(x, -1, torch.float64),
    "softmax as float32": lambda x, *_: fusedops.softmax(x, -1, torch.float32),
    "softmax of integers": lambda x, *_: fusedops.softmax(
        (4 * x.float()).long(), -1, torch.float32
    ),
    "softmax of a scalar": lambda x, *_: fusedops.softmax(x[0, 0, 0, 0], 0),
    "scaled": lambda x, *_: masked_softmax(x, scale=0.3),
    "bool mask": lambda x, r, w, b, m, f, s: masked_softmax(x, m),
    "bool mask of a row": lambda x, r, w, b, m, f, s: masked_softmax(x, m[0, 0, :1]),
    "float mask": lambda x, r, w, b, m, f, s: masked_softmax(x, f, scale=0.5),
    "bias": lambda x, r, w, b, m, f, s: masked_softmax(x, m, bias=s, scale=0.5),
    "causal": lambda x, *_: masked_softmax(x, causal=True),
    "bottom right": lambda x, *_: masked_softmax(x, causal="bottom_right"),
    "causal, bool mask": lambda x, r, w, b, m, f, s: masked_softmax(x, m, causal=True),
    "finite": lambda x, r, w, b, m, f, s: masked_softmax(x, m, mask_value=-1e4),
    "zeros": lambda x, r, w, b, m, f, s: masked_softmax(x, m, causal=True, masked_rows="zero"),
    "zeros, float mask": lambda x, r, w, b, m, f, s: masked_softmax(x, f, masked_rows="zero"),
    "masked, as float32": lambda x, r, w, b, m, f, s: masked_softmax(
        x, m, bias=s, dtype=torch.float32
    ),
    "window": lambda x, *_: masked_softmax(x, causal=True, window=2),
    "window, bool mask": lambda x, r, w, b, m, f, s: masked_softmax(x, m, window=(1, 3)),
    "start and end": lambda x, *_: masked_softmax(
        x, start=torch.arange(5), end=torch.tensor([[[6]], [[8]]], dtype=torch.int32)
    ),
    "sinks": lambda x, r, w, *_: masked_softmax(x, causal=True, sinks=w[:5]),
    "a sink": lambda x, *_: masked_softmax(x, sinks=0.0, masked_rows="zero"),
    "soft cap": lambda x, r, w, b, m, f, s: masked_softmax(x, m, bias=s, softcap=1.5),
    "linear_cross_entropy, mean": lambda x, r, *_: fusedops.linear_cross_entropy(
        *_linear(x, r), ignore_index=4
    ),
    "linear_cross_entropy of two heads": lambda x, r, *_: fusedops.linear_cross_entropy(
        x[:, 0, 0].float(), r.float().view(15, 2, 8), CLASSES[:, :2, 0], reduction="sum"
    ),  # ONNX Runtime's Expand takes no bfloat16 on the CPU
    "cross_entropy, weighted": lambda x, r, w, *_: fusedops.cross_entropy(
        x.transpose(1, 3), CLASSES.transpose(1, 2), w.abs(), ignore_index=2, z_loss=0.125
    ),  # torch.onnx writes the factor of torch's product as float32
}
#: The arguments of ops, from the same; words after an op's name tell calls of one op apart.
ARGUMENTS = {
    "softmax": lambda x, *_: (x, 1),
    "log_softmax": lambda x, *_: (x, -1),
    "log_softmax as float32": lambda x, *_: (x, 2, torch.float32),
    "masked_softmax": lambda x, r, w, b, m, f, s: (x, m, 0.5, True, None, s),
    "layer_norm": lambda x, r, w, b, *_: (x, [8], w, b, 1e-5),
    "layer_norm, no bias": lambda x, r, w, *_: (x, [8], w, None, 1e-5),
    "layer_norm over two": lambda x, *_: (x, [5, 8], None, None, 1e-5),
    "std_norm": lambda x, r, w, b, *_: (x, [8], w, b, 1e-6),
    "l2_norm": lambda x, r, w, *_: (x, [8], w, 1e-6),
    "l2_norm over two": lambda x, *_: (x, [5, 8], None, 1e2),
    "std_norm over two": lambda x, *_: (x, [5, 8], None, None, 1e-6),
    "rms_norm": lambda x, r, w, *_: (x, [8], w, 1e-6),
    "rms_norm over two": lambda x, *_: (x, [5, 8], None, 1e-6),
    "rms_norm, gemma": lambda x, r, w, *_: (x, [8], w, 1e-6, 1.0),
    "rms_norm, gemma without a weight": lambda x, *_: (x, [8], None, 1e-6, 1.0),
    "rms_norm, llama": lambda x, r, w, *_: (x, [8], w, 1e-6, 0.0, True),
    "rms_norm, rounds": lambda x, *_: (x, [8], None, 1e-6, 0.0, True),
    "add_layer_norm": lambda x, r, w, b, *_: (x, r, [8], w, b, 1e-5),
    "add_layer_norm, two dtypes": lambda x, r, w, b, *_: (x, r.float(), [8], w, b, 1e-5),
    "add_rms_norm": lambda x, r, w, *_: (x, r, [8], w, 1e-6),
    "add_rms_norm, two dtypes": lambda x, r, w, *_: (x.float(), r, [8], w, 1e-6),
    "softmax_stats": lambda x, *_: (x, 1),
    "softmax_stats of a scalar": lambda x, *_: (x[0, 0, 0, 0], 0),
    "softmax_apply": lambda x, *_: (x, *ops.softmax_stats(x, -1), -1),
    "cross_entropy": lambda x, *_: (x, CLASSES),
    "cross_entropy, smoothed": lambda x, *_: (x, CLASSES.int(), 3, 0.1),
    "cross_entropy, capped": lambda x, *_: (x, CLASSES, 3, 0.0, 0.5, 2.0, True),
    "cross_entropy, no class ignored": lambda x, *_: (x, CLASSES, None),
    "linear_cross_entropy": lambda x, r, *_: _linear(x, r),
    "linear_cross_entropy, all terms": lambda x, r, w, *_: (
        *(*_linear(x, r), r.flatten()[:11]),
        _statistics(w.abs().sum() * torch.arange(30) / 30, x),
        *(_statistics(w[0].abs(), x), 4, 0.1, 0.01, 2.0),
    ),
    "linear_cross_entropy_losses": lambda x, r, *_: (*_linear(x, r), None, 4, 0.1),
    "stack_softmax": lambda x, r, *_: ([x, r, x], -1, 1),
    "stack_softmax at the end": lambda x, r, *_: ([x, r], 0, -1),
    "stack_log_softmax": lambda x, r, *_: ([x, r], 1, 0),
    "stack_layer_norm": lambda x, r, w, b, *_: ([x, r], [8], [w, b], [b, w], 1e-5, 2),
    "stack_layer_norm, no weights": lambda x, r, *_: ([x, r], [5, 8], [], [], 1e-5, -1),
    "masked_softmax_dropout": lambda x, r, w, b, m, f, s: (  # of 0
        *(x, m, 0.5, True, None, 0.0, torch.tensor(3), s),
    ),
    "dropout": lambda x, *_: (x, 0.0, torch.tensor(3)),
    "masked_softmax_sinks": lambda x, r, w, b, m, f, s: (
        *(x, m, 0.5, True, None, 0.0, None, s),
        *(None, 0, False, None, None, None, w[:5], 2.0),
    ),
    "spatial_layer_norm": lambda x, r, w, b, *_: (x, 1, w[:3], b[:3], 1e-6),
    "spatial_layer_norm, last": lambda x, r, w, b, *_: (x, -1, w, b, 1e-6),
    "spatial_layer_norm of a scalar": lambda x, r, w, *_: (x[0, 0, 0, 0], 0, w[:1], None, 1e-6),
    "spatial_rms_norm": lambda x, r, w, *_: (x, -2, w[:5], 1e-6),
    "spatial_rms_norm, no weight": lambda x, *_: (x, 0, None, 1e-6),
    "add_rms_norm, llama": lambda x, r, w, *_: (x, r, [8], w, 1e-6, 0.0, True),
    "_add_layer_norm": lambda x, r, w, b, *_: (x, r, [8], w, b, 1e-5, True),
    "_add_rms_norm": lambda x, r, w, *_: (x, r, [8], w, 1e-6, True, 1.0),
}


def is_of_inference(op):
    """Whether a rewritten or exported program for inference can call an op: it returns new tensors,
    and is no derivative."""
    schema = getattr(ops, op).default._schema
    return not schema.is_mutable and "_backward" not in op and "_gradients" not in op


INFERENCE_OPS = sorted(filter(is_of_inference, libraries.OPS))
#: The calls of ops whose variants without a derivative get their arguments.
OF_VARIANTS = {"rms_norm": "rms_norm, gemma", "cross_entropy": "cross_entropy, smoothed"}
OF_VARIANTS["log_softmax"] = "log_softmax as float32"
for _op in INFERENCE_OPS:
    _public = _op.strip("_").removesuffix("_output")
    ARGUMENTS.setdefault(_op, ARGUMENTS.get(OF_VARIANTS.get(_public, _public)))


def call_of(name):
    op = getattr(ops, re.match(r"\w+", name)[0])
    return lambda *inputs: op(*ARGUMENTS[name](*inputs))


OPS |= {name: call_of(name) for name in ARGUMENTS}


@pytest.mark.parametrize("opset_version", range(18, 24))
def test_every_op_that_an_inference_graph_can_call_has_a_translation(opset_version):
    table = onnx.translation_table(opset_version)
    assert len(INFERENCE_OPS) > 30
    assert [op for op in INFERENCE_OPS if getattr(ops, op).default not in table] == []


def test_every_one_of_them_is_compared_with_onnx_runtime():
    exported = torch.export.export(Calls(OPS), make_inputs(torch.float32))
    called = {node.target for node in exported.graph.nodes}
    assert [op for op in INFERENCE_OPS if getattr(ops, op).default not in called] == []


def make_inputs(dtype):
    torch.manual_seed(0)
    x, r = torch.randn(2, 2, 3, 5, 8).to(dtype)
    w, b = torch.randn(2, 8)  # float32, whatever the input
    m = torch.rand(2, 1, 5, 8) < 0.6
    m[0, 0, 2] = False
    f = torch.where(m, torch.randn(m.shape), -INF).to(dtype)
    return x, r, w, b, m, f, torch.randn(1, 8).to(dtype)


#: Dtypes, and older opsets for one of them.
COMPUTED = [(dtype, onnx.OPSET) for dtype in DTYPES]
COMPUTED += [("float32", opset) for opset in range(18, onnx.OPSET)]


@pytest.fixture(scope="module", params=beyond(COMPUTED[:2], COMPUTED), ids=str)
def computed(request):
    """The results of ONNX Runtime and of the operators, by name."""
    dtype, opset_version = request.param
    inputs, model = make_inputs(DTYPES[dtype]), Calls(OPS)
    program, results = outputs(model, inputs, opset_version=opset_version)
    assert program.model.opset_imports[""] == opset_version
    expected = model(*inputs)
    assert len(results) == len(expected)
    return dict(zip(expected, zip(results, expected.values(), strict=True), strict=True))


def tolerance(expected):
    """One unit in the last place in 16 bits, as the last bit of float32 may decide the rounding."""
    if expected.dtype == torch.float64 and expected.shape[-1:] != (1,):
        return 1e-11
    # Statistics of LayerNormalization are float32 in every model.
    return torch.finfo(expected.dtype).eps if expected.element_size() == 2 else 1e-6


@pytest.mark.parametrize("name", OPS)
def test_an_op_gives_the_same_in_onnx_runtime(name, computed):
    mine = [pair for key, pair in computed.items() if key.rsplit(" ", 1)[0] == name]
    assert mine
    for actual, expected in mine:
        rtol = atol = tolerance(expected)
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def test_llamas_norm_is_rounded_before_it_is_weighted():
    x, w = torch.randn(40, 64).bfloat16(), torch.randn(64).bfloat16()
    model = Calls({"norm": lambda x, w: ops.rms_norm(x, [64], w, 1e-6, 0.0, True)})
    _, (y, _) = outputs(model, (x, w))
    assert (y != model(x, w)["norm 0"]).double().mean() < 0.02


def counts(program):
    return Counter(node.op_type for node in program.model.graph)


def test_each_norm_and_softmax_is_one_operator():
    model = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), nn.Softmax(-1), nn.LogSoftmax(-1))
    program, _ = outputs(model, (torch.randn(4, 8),))
    names = "LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"
    assert {name: counts(program)[name] for name in names} == dict.fromkeys(names, 1)


def test_before_opset_23_rms_norm_is_decomposed():
    model, x = nn.RMSNorm(8), torch.randn(4, 8)
    program, (actual,) = outputs(model, (x,), opset_version=18)
    assert program.model.opset_imports[""] == 18 and "RMSNormalization" not in counts(program)
    torch.testing.assert_close(actual, model(x), rtol=1e-6, atol=1e-6)


def test_causality_follows_sizes_that_vary():
    class Causal(nn.Module):
        def forward(self, query, key):
            return masked_softmax(query @ key.mT, causal="bottom_right")

    queries, keys = torch.export.Dim("queries", max=64), torch.export.Dim("keys", max=64)
    exported = torch.export.export(
        Causal(),
        (torch.randn(5, 4), torch.randn(7, 4)),
        dynamic_shapes=({0: queries}, {0: keys}),
    )
    program = onnx.export(exported, verbose=False)
    for inputs in ((torch.randn(3, 4), torch.randn(3, 4)), (torch.randn(2, 4), torch.randn(9, 4))):
        torch.testing.assert_close(program(*inputs)[0], Causal()(*inputs), rtol=1e-5, atol=1e-6)


#: Settings of architectures, and the operators that exports have for two layers of them.
MODELS = {
    "Bert": ({}, {"LayerNormalization": 5, "Softmax": 2}),
    "Llama": (
        {"num_key_value_heads": 1, "use_cache": False},
        {"RMSNormalization": 5, "Softmax": 2},
    ),
    "GPT2": ({"n_positions": 32, "use_cache": False}, {"LayerNormalization": 5, "Softmax": 2}),
}


def sentences(batch):
    mask = torch.ones(batch, 8, dtype=torch.long)
    mask[-1, 5:] = 0
    return {"input_ids": torch.randint(0, 64, (batch, 8)), "attention_mask": mask}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_a_rewritten_model_runs_in_onnx_runtime_at_two_batch_sizes(name, tmp_path):
    settings, operators = MODELS[name]
    model = tiny(name, return_dict=False, **settings)
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {key: {0: batch} for key in sentences(2)}
    exported = torch.export.export(model, (), sentences(2), dynamic_shapes=shapes)
    program = onnx.export(exported, tmp_path / "model.onnx", verbose=False)
    assert {name: counts(program)[name] for name in operators} == operators
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for size in (2, 5):
        inputs = sentences(size)
        actual = session.run(None, {key: value.numpy() for key, value in inputs.items()})[0]
        with torch.no_grad():
            expected = model(**inputs)[0]
        torch.testing.assert_close(torch.from_numpy(actual), expected, rtol=1e-4, atol=1e-5)


SEED = torch.tensor(3)
DROPOUTS = {
    "masked_softmax_dropout": lambda x: fusedops.masked_softmax_dropout(x, p=0.5),
    "dropout": lambda x: fusedops.dropout(x),
    "add_layer_norm": lambda x: fusedops.add_layer_norm(x, x, (8,), p=0.5, seed=SEED),
    "add_rms_norm": lambda x: fusedops.add_rms_norm(x, x, (8,), p=0.5, seed=SEED),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_is_refused_with_the_fix(name):
    exported = torch.export.export(Calls({name: DROPOUTS[name]}), (torch.randn(4, 8),))
    with pytest.raises(torch.onnx.OnnxExporterError) as caught:
        onnx.export(exported, verbose=False)
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert "export the model in eval mode, after model.eval()" in str(error)


@pytest.mark.parametrize("op", [fusedops.softmax_, ops.softmax_backward])
def test_an_operator_without_a_translation_is_named(op):
    arguments = (0,) if op is fusedops.softmax_ else (torch.ones(4), 0, torch.float32)
    exported = torch.export.export(Calls({"": lambda x: op(x + 1, *arguments)}), (torch.ones(4),))
    with pytest.raises(RuntimeError, match=r"softmax_\w*.default has no translation; in the model"):
        onnx.export(exported)


@pytest.mark.parametrize(
    ("opset_version", "error", "message"),
    [
        (-1, ValueError, "opset_version is -1, wanted 18 or later"),
        (17, ValueError, "opset_version is 17, wanted 18 or later"),
        (1000, ValueError, r"opset_version is 1000, wanted at most \d+, the newest"),
        ("18", TypeError, "opset_version is '18', a str, wanted an int"),
        (18.5, TypeError, "opset_version is 18.5, a float, wanted an int"),
        (True, TypeError, "opset_version is True, a bool, wanted an int"),
        (None, TypeError, "opset_version is None, a NoneType, wanted an int"),
    ],
)
def test_an_opset_that_does_not_exist_or_is_too_old_is_refused(opset_version, error, message):
    with pytest.raises(error, match=message):
        onnx.translation_table(opset_version)


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("{here}", IsADirectoryError, "path is '.*', a folder, wanted the name of a file"),
        ("{here}/new/model.onnx", FileNotFoundError, "path is '.*', but there is no such folder"),
        ("", FileNotFoundError, "path is '', but there is no such folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_translated(
    tmp_path, monkeypatch, path, error, message
):
    monkeypatch.setattr(torch.onnx, "export", None)
    program = torch.export.export(torch.nn.Softmax(-1), (torch.ones(2, 3),))
    with pytest.raises(error, match=message):
        onnx.export(program, path.format(here=tmp_path))


def test_without_onnxscript_the_import_says_what_to_install():
    code = "import sys; sys.modules['onnxscript'] = None; import fusedops.integrations.onnx"
    result = run_python("-c", code)
    assert result.returncode != 0
    assert "pip install onnx onnxscript onnxruntime" in result.stderr
