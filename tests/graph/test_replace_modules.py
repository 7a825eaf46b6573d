"""fusedops.replace_modules: the modules of a model become ours, in place, and back again."""

import copy

import pytest
import torch
import transformers.models.gemma.modeling_gemma as gemma
import transformers.models.gpt_oss.modeling_gpt_oss as gpt_oss
import transformers.models.llama.modeling_llama as llama
import transformers.models.t5.modeling_t5 as t5
from tiny_models import tiny_decoder
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing._internal.two_tensor import TwoTensor
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

import fusedops
from fusedops import reference

N = 16


class Plain(nn.Module):
    """Each of torch's modules once, and a layer norm that two names share."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(N, N)
        self.layer_norm = nn.LayerNorm(N, eps=1e-3)
        self.shared = self.layer_norm
        self.rms_norm = nn.RMSNorm(N)
        self.without_weight = nn.LayerNorm(N, elementwise_affine=False)
        self.softmax = nn.Softmax(dim=-1)
        self.log_softmax = nn.LogSoftmax(dim=1)

    def forward(self, x):
        x = self.without_weight(self.rms_norm(self.layer_norm(self.linear(x))))
        return self.log_softmax(self.softmax(self.shared(x)))


def _randomised(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def test_torchs_modules_become_ours_with_eagers_values_and_gradients():
    model, x = _randomised(Plain()).double(), torch.randn(4, N, dtype=torch.float64)
    eager = copy.deepcopy(model)
    report = fusedops.replace_modules(model)
    assert [(m.paths, m.became) for m in report.replaced] == [
        (("layer_norm", "shared"), "fusedops.nn.LayerNorm"),
        (("rms_norm",), "fusedops.nn.RMSNorm"),
        (("without_weight",), "fusedops.nn.LayerNorm"),
        (("softmax",), "fusedops.nn.Softmax"),
        (("log_softmax",), "fusedops.nn.LogSoftmax"),
    ]
    assert report.left == ()
    torch.testing.assert_close(model(x), eager(x), rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(m(x).sin().sum(), m.parameters()) for m in (model, eager))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    assert fusedops.replace_modules(model).modules == ()


def test_the_replaced_modules_run_our_operators(ops_run):
    model = Plain()
    fusedops.replace_modules(model)
    with torch.no_grad():
        assert ops_run(model, torch.randn(4, N)) == {
            "layer_norm": 3,
            "rms_norm": 1,
            "softmax": 1,
            "log_softmax": 1,
        }


def test_parameters_state_hooks_and_mode_stay():
    model = Plain().eval()
    parameters, keys, seen = dict(model.named_parameters()), list(model.state_dict()), []
    handle = model.layer_norm.register_forward_hook(lambda *_: seen.append("hook"))
    before = model.layer_norm
    fusedops.replace_modules(model)
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(now is parameters[name] for name, now in model.named_parameters())
    assert list(model.state_dict()) == keys and model.layer_norm is before is model.shared
    assert not model.layer_norm.training
    model.layer_norm(torch.randn(2, N))
    handle.remove()
    model.layer_norm(torch.randn(2, N))
    assert seen == ["hook"]


def test_undo_gives_the_classes_and_attributes_back():
    model = nn.ModuleList([Plain(), llama.LlamaRMSNorm(N)])
    types = [type(module) for module in model.modules()]
    attributes = [set(vars(module)) for module in model.modules()]
    report = fusedops.replace_modules(model)
    assert [type(module) for module in model.modules()] != types
    report.undo()
    report.undo()
    assert [type(module) for module in model.modules()] == types
    assert [set(vars(module)) for module in model.modules()] == attributes


def test_undo_refuses_where_a_class_has_changed_since():
    model = nn.Sequential(nn.LayerNorm(N), nn.Softmax(-1))
    report = fusedops.replace_modules(model)
    parametrizations.weight_norm(model[0], dim=None)
    with pytest.raises(RuntimeError, match="a LayerNorm has become a ParametrizedLayerNorm since"):
        report.undo()
    assert type(model[1]) is fusedops.nn.Softmax


def test_undo_refuses_where_a_forward_has_been_wrapped_since():
    """As accelerate's hooks wrap it; the wrapper holds the forward of the new class."""
    model = nn.Sequential(nn.RMSNorm(8), nn.LayerNorm(8))
    report = fusedops.replace_modules(model)
    model[0].forward = model[0].forward
    with pytest.raises(RuntimeError, match="forward of a .* has been replaced on the object"):
        report.undo()
    assert model(torch.randn(2, 8)).shape == (2, 8)
    del model[0].forward
    report.undo()
    assert type(model[0]) is nn.RMSNorm


# --- RMSNorm of other packages --------------------------------------------------------------------

#: Each form: its class, and the variant that computes it.
FORMS = [
    (llama.LlamaRMSNorm, "llama"),
    (gemma.GemmaRMSNorm, "gemma"),
    (gpt_oss.GptOssRMSNorm, "torch"),
    (t5.T5LayerNorm, "t5"),
]
every_form = pytest.mark.parametrize("form, variant", FORMS, ids=[v for _, v in FORMS])


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_a_form_of_rms_norm_keeps_its_values_and_dtype(form, variant, dtype, weight_dtype):
    norm = _randomised(form(N, eps=1e-2)).to(weight_dtype)
    x = torch.randn(3, 5, N).to(dtype)
    eager = norm(x)
    report = fusedops.replace_modules(norm)
    assert report.replaced and norm.variant == variant
    # Eager rounds to 16 bits once or twice, each to within half a unit in the last place.
    rtol = 2 * torch.finfo(torch.bfloat16).eps if torch.bfloat16 in (dtype, weight_dtype) else 1e-6
    torch.testing.assert_close(norm(x), eager, rtol=rtol, atol=1e-6)


def test_a_copy_of_a_form_is_found_whatever_its_names():
    class Copied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.rand(N)), 1e-5

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """As Llama's."""
            kept = tokens.dtype
            tokens = tokens.to(torch.float32)
            mean_square = tokens.pow(2).mean(-1, keepdim=True)
            tokens = tokens * torch.rsqrt(mean_square + self.variance_epsilon)
            return self.weight * tokens.to(kept)

    norm = Copied()
    (replaced,) = fusedops.replace_modules(norm).replaced
    assert replaced.paths == ("",) and norm.variant == "llama"


class WithALambda(nn.Module):
    # fmt: off
    forward = max(
        [lambda self, x: x], key=id)
    # fmt: on


class WithACall(llama.LlamaRMSNorm):
    def __call__(self, x):
        return 2 * super().__call__(x)


class WithADecorator(llama.LlamaRMSNorm):
    forward = torch.no_grad()(llama.LlamaRMSNorm.forward)


def test_a_class_whose_source_does_not_say_all_is_left():
    modules = WithALambda(), WithACall(N), WithADecorator(N)
    assert fusedops.replace_modules(nn.Sequential(*modules)).modules == ()


def test_a_whole_model_of_transformers_keeps_its_values():
    model, tokens = tiny_decoder("Llama").double(), torch.randint(0, 64, (2, 6))
    with torch.no_grad():
        eager = model(tokens).last_hidden_state
        report = fusedops.replace_modules(model)
        ours = model(tokens).last_hidden_state
    assert len(report.replaced) == 5 and report.left == ()
    # The model normalises in float32 even where it is float64.
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


# --- what is left ---------------------------------------------------------------------------------


class MyNorm(nn.LayerNorm):
    def forward(self, input):
        return super().forward(input) * 2


def _parametrized():
    return parametrizations.weight_norm(nn.LayerNorm(N), dim=None)


def _with(module, **attributes):
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


TWO_TENSORS = nn.Parameter(TwoTensor(torch.ones(N), torch.ones(N)))
LEFT = {
    "a subclass of torch.nn.LayerNorm": lambda: MyNorm(N),
    "its parameters are parametrized": _parametrized,
    "its forward was replaced on the object": lambda: _with(nn.LayerNorm(N), forward=lambda x: x),
    "its forward is not one that is known": lambda: MambaRMSNormGated(N, group_size=N),
    "its dim is None": lambda: nn.Softmax(),
    "its weight is not a parameter of one dimension": lambda: _with(
        llama.LlamaRMSNorm(N), weight=nn.Parameter(torch.ones(2, N))
    ),
    "its weight is one number": lambda: llama.LlamaRMSNorm(1),
    "its attribute eps means something else": lambda: _with(llama.LlamaRMSNorm(N), eps=3),
    "its weight is torch.float8_e4m3fn": lambda: nn.LayerNorm(N, dtype=torch.float8_e4m3fn),
    "its weight is a TwoTensor, which the operators do not take": lambda: _with(
        nn.LayerNorm(N), weight=TWO_TENSORS
    ),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_has_its_reason(reason):
    module = LEFT[reason]()
    was = type(module)
    report = fusedops.replace_modules(nn.Sequential(module))
    assert report.replaced == () and len(report.left) == 1
    assert report.left[0].reason.startswith(reason) and reason in str(report)
    assert type(module) is was


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_module_on_the_meta_device_is_replaced_before_it_gets_another(norm):
    model = nn.Sequential(norm(N, device="meta"))
    assert len(fusedops.replace_modules(model).replaced) == 1
    model.to_empty(device="cpu")
    model[0].reset_parameters()
    x = torch.randn(2, N)
    torch.testing.assert_close(model(x), norm(N)(x))


def test_a_module_of_dtensors_is_replaced(tmp_path):
    from torch.distributed.tensor import DeviceMesh, distribute_module, distribute_tensor

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        mesh, x = DeviceMesh("cpu", [0]), torch.randn(2, N)
        norm = distribute_module(nn.LayerNorm(N), mesh)
        assert len(fusedops.replace_modules(norm).replaced) == 1
        output = norm(distribute_tensor(x, mesh)).full_tensor()
        exact = reference.layer_norm(x, [N], eps=norm.eps)
        torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


def test_the_report_is_a_table():
    report = str(fusedops.replace_modules(nn.Sequential(nn.LayerNorm(N), MyNorm(N))))
    lines = report.splitlines()
    assert lines[0] == "fusedops: 1 of 2 modules replaced"
    assert lines[2].split() == ["module", "was", "became", "reason"]
    assert lines[4].split() == ["0", "LayerNorm", "fusedops.nn.LayerNorm"]


def test_a_model_of_another_type_is_refused():
    with pytest.raises(TypeError, match="model is of type function, wanted a torch.nn.Module"):
        fusedops.replace_modules(lambda x: x)
