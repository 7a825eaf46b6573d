"""Where torch.func, inference mode and other modes are special.

tests/ops/test_torch_func.py has the derivatives, test_ops_registration.py vmap, and
test_ops_vmap_arguments.py what vmap refuses.
"""

from bad_calls import answers, either, refused

#: torch.func wraps constants too, and functionalize takes no op from outside torch that writes.
FORWARD_MODE = r"storage|forward.mode|jvp|forward AD|tangent"
FUNCTIONALIZE = r"functorch transforms|non-ATen|torch\.func"
OTHER_TRANSFORMS = [
    answers(
        "torch.func.jvp(lambda x: softmax(x, -1, torch.float64), (x,), (y,))[1]",
        "torch.func.jvp(lambda x: torch.softmax(x.double(), -1), (x,), (y,))[1]",
        1e-4,
    ),
    either(
        "torch.func.jvp(lambda x: x * softmax(y, -1), (x,), (y,))[1]",
        "y * y.softmax(-1)",
        FORWARD_MODE,
    ),
    either(
        "torch.func.functionalize(lambda x: softmax_(x.clone(), -1))(x)",
        "x.softmax(-1)",
        FUNCTIONALIZE,
    ),
    either(
        "torch.func.functionalize(lambda x: softmax(x, -1, out=out))(x)",
        "x.softmax(-1)",
        FUNCTIONALIZE,
    ),
]

UNDER_MODES = [
    answers(f"torch.inference_mode()(lambda: {call})()", expected)
    for call, expected in {
        "softmax(x, -1)": "torch.softmax(x, -1)",
        "softmax_(x, -1)": "torch.softmax(x, -1)",
        "softmax(leaf, -1)": "torch.softmax(x, -1)",
        "layer_norm(leaf, [5], w)": "torch.nn.functional.layer_norm(x, (5,), w)",
        "masked_softmax(x, mask, out=out)": "masked_softmax(x, mask)",
        "softmax(x, -1, out=out)": "torch.softmax(x, -1)",
        "softmax_(leaf, -1)": "torch.softmax(x, -1)",
    }.items()
] + [
    answers("torch.no_grad()(lambda: softmax_(leaf, -1).detach())()", "torch.softmax(x, -1)"),
    answers("torch.no_grad()(lambda: softmax(leaf, -1, out=out))()", "torch.softmax(x, -1)"),
    answers("softmax(inference(x), -1, out=out)", "torch.softmax(x, -1)"),
    answers("layer_norm(inference(x), [5], inference(w))", "layer_norm(x, [5], w)"),
    either("softmax_(inference(x), -1)", "torch.softmax(x, -1)", "(?s)[Ii]nference"),
    either("softmax(x, -1, out=inference(out))", "torch.softmax(x, -1)", "(?s)[Ii]nference"),
    refused("softmax(leaf * inference(x), -1).sum().backward()", "(?s)[Ii]nference"),
    answers("softmax(Fake(x), -1).shape", "(3, 5)"),
    answers("rms_norm(Fake(x), [5]).shape", "(3, 5)"),
    answers("softmax_(Fake(x), -1).shape", "(3, 5)"),
]


def test_other_transforms_and_modes_give_the_right_result(judge):
    judge(OTHER_TRANSFORMS + UNDER_MODES)
