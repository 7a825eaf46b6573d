"""Every function under vmap, and where torch.func, inference mode and other modes are special.

tests/ops/test_torch_func.py has the derivatives, test_ops_vmap_arguments.py what vmap refuses.
"""

from bad_calls import answers, either, refused

#: A function of rows, one at a time, and its result for all of them.
BY_ROWS = {
    "softmax(x, -1)": "torch.softmax(x, -1)",
    "softmax(x, None)": "torch.softmax(x, -1)",
    "softmax(x, 0, torch.float64)": "torch.softmax(x.double(), -1)",
    "log_softmax(x, 0)": "torch.log_softmax(x, -1)",
    "softmax_stats(x, 0)": "stats(x)",
    "softmax_apply(x, *softmax_stats(x, 0), 0)": "torch.softmax(x, -1)",
    "masked_softmax(x)": "torch.softmax(x, -1)",
    "masked_softmax(x, x > 0)": "torch.softmax(x.masked_fill(x <= 0, -inf), -1)",
    "masked_softmax(x, bias=b, scale=0.5)": "torch.softmax(x * 0.5 + b, -1)",
    "masked_softmax_dropout(x, p=0.0, seed=seed)": "torch.softmax(x, -1)",
    "masked_softmax_dropout(x, p=1.0, seed=seed)": "x.mul(0).abs()",
    "layer_norm(x, [5], w, b)": "torch.nn.functional.layer_norm(x, (5,), w, b)",
    "std_norm(x, [5], w, b)": "reference.std_norm(x, (5,), w, b).float()",
    "rms_norm(x, [5], w)": "torch.nn.functional.rms_norm(x, (5,), w)",
    "rms_norm(x, [5], w, variant='llama')": "torch.nn.functional.rms_norm(x, (5,), w)",
    "rms_norm(x, [5], w - 1, variant='gemma')": "torch.nn.functional.rms_norm(x, (5,), w)",
    "add_layer_norm(x, b, [5], w)[0]": "torch.nn.functional.layer_norm(x + b, (5,), w)",
    "add_layer_norm(x, b, [5], w)[1]": "x + b",
    "add_rms_norm(x, b, [5], w)[0]": "torch.nn.functional.rms_norm(x + b, (5,), w)",
    "stack_softmax([x, b], 0, 1)": "torch.softmax(torch.stack([x, b.expand(3, 5)], -1), 1)",
    "stack_log_softmax([x, x], 0)": "torch.log_softmax(torch.stack([x, x], 1), -1)",
    "stack_layer_norm([x, x], [5])": "torch.nn.functional.layer_norm(torch.stack([x, x], 1), (5,))",
}
VMAP = [
    *(answers(f"torch.vmap(lambda x: {c})(x)", expected) for c, expected in BY_ROWS.items()),
    *(
        answers(f"torch.vmap(lambda x: {c}, in_dims=1)(x.t().contiguous())", expected)
        for c, expected in BY_ROWS.items()
    ),
    *(
        answers(
            f"torch.vmap(lambda x: torch.vmap(lambda x: {c})(x))(torch.stack([x, x]))[1]", expected
        )
        for c, expected in BY_ROWS.items()
        if not c.startswith("softmax_stats")
    ),
    answers("torch.vmap(lambda x, w: layer_norm(x, [5], w))(x, y)", "layer_norm(x, [5]) * y"),
    answers("torch.vmap(lambda w: layer_norm(x, [5], w))(y)[1]", "layer_norm(x, [5]) * y[1]"),
    answers("torch.vmap(lambda x, m: masked_softmax(x, m))(x, mask)", "masked_softmax(x, mask)"),
    answers("torch.vmap(lambda m: masked_softmax(x, m))(mask)[1]", "masked_softmax(x, mask[1])"),
    answers("torch.vmap(lambda x: softmax(x, -1))(x[:0])", "x[:0]"),
    answers("torch.vmap(lambda x: softmax_(x, 0))(x)", "torch.softmax(x, -1)"),
]
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


def test_vmap_gives_what_a_loop_gives(judge):
    judge(VMAP)


def test_other_transforms_and_modes_give_the_right_result(judge):
    judge(OTHER_TRANSFORMS + UNDER_MODES)
