"""fusedops.export.package compiles ahead of time, and C++ calls our operators."""

from __future__ import annotations

import copy
import zipfile

import pytest
import torch
from processes import run_python
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops

#: Nothing here is timed, so nothing need be compiled for speed.
QUICK = {"aot_inductor.compile_wrapper_opt_level": "O0"}


class _Attention(nn.Module):
    """Gives our operators every kind of argument: shapes, dtypes, None, -inf, a symbolic size."""

    def __init__(self):
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(16), nn.RMSNorm(16)

    def forward(self, x, mask):
        x = self.norm(x)
        wide = torch.softmax(x.bfloat16() @ x.bfloat16().mT, -1, dtype=torch.float32)
        weights = fusedops.masked_softmax(x @ x.mT, mask, causal="bottom_right", scale=0.5)
        faint = fusedops.masked_softmax(x @ x.mT, mask_value=-1e4, masked_rows="zero", causal=True)
        return self.rms((wide + weights + faint) @ x), torch.log_softmax(x.half(), 0)


def _inputs(batch):
    mask = torch.ones(batch, 1, 8, dtype=torch.bool)
    mask[0, :, 5:] = False
    return torch.randn(batch, 8, 16), mask


@pytest.fixture(scope="module")
def model():
    return _Attention().eval()


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, _inputs(3), dynamic_shapes=({0: batch}, {0: batch}))
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    assert fusedops.export.package(exported, path, inductor_configs=QUICK) == str(path)
    return path


@pytest.fixture(scope="module")
def package(path):
    return torch._inductor.aoti_load_package(str(path))


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_a_package_gives_eagers_results_for_every_batch(package, model, batch):
    inputs = _inputs(batch)
    for ours, eager in zip(package(*inputs), model(*inputs), strict=True):
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.exhaustive
def test_a_package_calls_the_kernels_and_writes_over_scores_that_nothing_else_needs(package):
    inputs = _inputs(3)
    with torch.profiler.profile() as profile:
        package(*inputs)
    names = [event.name for event in profile.events()]
    assert sorted(name for name in names if name.startswith("fusedops::")) == [
        "fusedops::_layer_norm_output",
        "fusedops::_rms_norm_output",
        "fusedops::_softmax",  # of bfloat16 into float32: nothing to write over
        "fusedops::log_softmax_",
        "fusedops::masked_softmax_",
        "fusedops::masked_softmax_",
    ]


@pytest.mark.exhaustive
def test_a_package_asks_python_for_no_derivative(package):
    x, mask = _inputs(3)
    output, _ = package(x.requires_grad_(), mask)
    assert not output.requires_grad


class _EveryDtype(nn.Module):
    def forward(self, x):
        dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
        softmaxes = [fusedops.softmax(x, -1, dtype=dtype) for dtype in dtypes]
        return *softmaxes, fusedops.masked_softmax(x, causal=True, dtype=torch.float32)


@pytest.mark.exhaustive
def test_a_package_gives_the_dtypes_that_are_asked_for(tmp_path):
    # AOTInductor of torch 2.10 and 2.11 reads other dtypes than it wrote.
    x = torch.randn(8, 8, dtype=torch.bfloat16)
    exported = torch.export.export(_EveryDtype(), (x,))
    path = fusedops.export.package(exported, tmp_path / "model.pt2", inductor_configs=QUICK)
    package = torch._inductor.aoti_load_package(path)
    for ours, eager in zip(package(x), _EveryDtype()(x), strict=True):
        assert ours.dtype == eager.dtype and torch.equal(ours, eager)


@pytest.mark.exhaustive
def test_a_rewritten_program_packages_as_it_is_and_other_passes_and_options_stay(tmp_path):
    class Count(CustomGraphPass):
        seen = 0

        def __call__(self, graph):
            Count.seen += 1

        def uuid(self):
            return None

    options = QUICK | {"post_grad_custom_post_pass": Count()}
    given = dict(options)
    exported = torch.export.export(nn.Softmax(-1), (torch.randn(4, 8),))
    path = fusedops.export.package(
        fusedops.export.rewrite(exported), tmp_path / "model.pt2", inductor_configs=options
    )
    assert Count.seen == 1 and options == given
    with zipfile.ZipFile(path) as file:
        texts = [file.read(name) for name in file.namelist() if name.endswith("wrapper.cpp")]
    assert [text.count(b"CHECK(aoti_torch_fusedops__softmax(") for text in texts] == [1]


def test_rewriting_leaves_minus_infinity_out_of_the_arguments():
    # AOTInductor could not read it again.
    class Masked(nn.Module):
        def forward(self, x):
            by_name = {"mask": None, "scale": 1.0, "causal": True, "mask_value": -torch.inf}
            return fusedops.masked_softmax(x, causal=True) + torch.ops.fusedops.masked_softmax(
                x, **by_name
            )

    x = torch.randn(8, 8)
    program = fusedops.export.rewrite(torch.export.export(Masked(), (x,)))
    assert "inf" not in str(program.graph)
    assert torch.equal(program.module()(x), Masked()(x))


def test_a_program_loaded_from_a_file_trains_at_another_batch_size(tmp_path):
    softmax = fusedops.nn.MaskedSoftmax(scale=0.5, causal="bottom_right")
    model = nn.Sequential(nn.LayerNorm(8), softmax, nn.Linear(8, 8), nn.Softmax(-1)).double()
    x = torch.randn(5, 4, 8, dtype=torch.float64)
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(copy.deepcopy(model), (x[:3],), dynamic_shapes=shapes)
    torch.export.save(fusedops.export.rewrite(exported), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for each in (model, loaded):
        each(x).sin().sum().backward()
    eager = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter.grad, eager[name].grad, rtol=1e-12, atol=1e-12)


@pytest.mark.exhaustive
def test_a_package_that_runs_without_the_import_asks_for_it(path, tmp_path):
    torch.save(_inputs(3), tmp_path / "inputs.pt")
    # torch 2.10 loads no package before this submodule is imported, which `import fusedops` does.
    finished = run_python(
        "-c",
        f"""
import torch._inductor.codecache
inputs = torch.load({str(tmp_path / "inputs.pt")!r})
torch._inductor.aoti_load_package({str(path)!r})(*inputs)
""",
    )
    assert finished.returncode != 0
    assert "libfusedops.so, which is not loaded; import fusedops, or link" in finished.stderr


def test_an_option_that_inductor_does_not_have_is_named(tmp_path):
    exported = torch.export.export(nn.Softmax(-1), (torch.randn(4, 8),))
    with pytest.raises(AttributeError, match="nonsense does not exist"):
        fusedops.export.package(exported, tmp_path / "m.pt2", inductor_configs={"nonsense": 1})


def test_a_device_without_kernels_is_named_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("fusedops.export.has_kernels", lambda device: device == "cpu")
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(4, 8, device="cuda")
    with torch.no_grad():
        exported = torch.export.export(fusedops.nn.Softmax(-1), (x,))
    with pytest.raises(RuntimeError, match="softmax.default is called on cuda tensors"):
        fusedops.export.package(exported, tmp_path / "m.pt2")
