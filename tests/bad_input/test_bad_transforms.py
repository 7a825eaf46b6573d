"""Every function under vmap, forward mode, torch.func, inference mode and other modes."""

from bad_calls import answers, clear, either, refused

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
#: The row that vmap hides does not count as a dimension.
OUT_OF_RANGE = (
    "softmax(x, {})",
    "log_softmax(x, {})",
    "softmax(x, {}, torch.float64)",
    "softmax_stats(x, {})",
    "softmax_apply(x, x.amax(0, True), x.exp().sum(0, True), {})",
    "stack_softmax([x, x], {})",
    "stack_log_softmax([x, x], {})",
)
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
UNDER_VMAP = [
    refused(f"torch.vmap(lambda x: {call.format(dim)})(x)", clear("dim", dim))
    for call in OUT_OF_RANGE
    for dim in ("1", "-2", "5")
] + [
    refused("torch.vmap(lambda x: stack_softmax([x, x], 0, 2))(x)", clear("stack_dim", "2")),
    refused("torch.vmap(lambda x: stack_layer_norm([x], [5], stack_dim=2))(x)", "stack_dim"),
    *(
        refused(f"torch.vmap(lambda x: {norm}(x, {{}}))(x)".format(shape), "normalized_shape is")
        for norm in ("layer_norm", "std_norm", "rms_norm")
        for shape in ("[3, 5]", "[4]", "[]", "[5, 1]")
    ),
    refused("torch.vmap(lambda x: layer_norm(x, [5], y))(x)", clear("weight", r"\[3, 5\]")),
    refused("torch.vmap(lambda x: add_layer_norm(x, y, [5]))(x)", clear("residual", r"\[3, 5\]")),
    refused("torch.vmap(lambda x: masked_softmax(x, causal=True))(x)", clear("causal", r"\[5\]")),
    refused("torch.vmap(lambda x: masked_softmax(x, mask))(x)", clear("mask", r"\[3, 5\]")),
    refused("torch.vmap(lambda x: softmax(x.int(), 0))(x)", clear("input", "int32")),
    refused("torch.vmap(lambda x: layer_norm(x, [5], eps=-1.0))(x)", clear("eps", "-1")),
    refused("torch.vmap(lambda x: softmax(x, 0, out=out[0]))(x)", "(?s)vmap|out"),
]

#: Functions whose derivative for x is that of the expected expression.
IN_FORWARD_MODE = {
    **{c: e for c, e in BY_ROWS.items() if not c.startswith("softmax_stats")},
    "softmax_(x * 1, 0)": "torch.softmax(x, -1)",
    "masked_softmax(b, bias=x)": "torch.softmax(x + b, -1)",
    "masked_softmax(b, x)": "torch.softmax(x + b, -1)",
    "layer_norm(b, [5], x)": "torch.nn.functional.layer_norm(b, (5,)) * x",
    "layer_norm(b, [5], None, x)": "x + 0 * b",
    "add_layer_norm(b, x, [5])[1]": "x + b",
    "nn.Softmax(0)(x)": "torch.softmax(x, -1)",
    "nn.LayerNorm(5)(x)": "torch.nn.functional.layer_norm(x, (5,))",
    "nn.MaskedSoftmax()(x)": "torch.softmax(x, -1)",
}
FORWARD_MODE = r"(?s)(forward.mode|jvp|forward AD|tangent)"
JVP = [
    *(
        answers(
            f"torch.vmap(lambda x, y: torch.func.jvp(lambda x: {call}, (x,), (y,))[1])(x, y)",
            f"torch.func.jvp(lambda x: {expected}, (x,), (y,))[1]",
            1e-4,
        )
        for call, expected in IN_FORWARD_MODE.items()
    ),
    *(
        refused(f"torch.func.jvp(lambda x: {call}, (x[0],), (y[0],))", FORWARD_MODE)
        for call in (
            "softmax(x, 0, out=torch.empty_like(x))",
            "log_softmax(x, None, out=torch.empty_like(x))",
            "masked_softmax(x, out=torch.empty_like(x))",
        )
    ),
    answers(
        "torch.func.jacfwd(lambda x: softmax(x, -1))(x)",
        "torch.func.jacrev(lambda x: x.softmax(-1))(x)",
    ),
    either(
        "torch.func.jvp(lambda x: x * softmax(y, -1), (x,), (y,))[1]",
        "y * y.softmax(-1)",
        "storage|" + FORWARD_MODE.removeprefix("(?s)"),  # torch.func wraps constants too
    ),
]


#: torch.func.functionalize takes no op from outside torch that writes.
FUNCTIONALIZE = r"functorch transforms|non-ATen|torch\.func"
GRADIENTS = [
    answers(
        "torch.func.grad(lambda x: (softmax(x, -1) * y).sum())(x)",
        "torch.func.grad(lambda x: (x.softmax(-1) * y).sum())(x)",
    ),
    answers(
        "torch.func.jacrev(lambda x: log_softmax(x, 0))(x)",
        "torch.func.jacrev(lambda x: x.log_softmax(0))(x)",
    ),
    answers(
        "torch.func.jacrev(torch.func.jacrev(lambda x: softmax(x, 0)))(x[0])",
        "torch.func.jacrev(torch.func.jacrev(lambda x: x.softmax(0)))(x[0])",
    ),
    answers(
        "torch.vmap(torch.func.grad(lambda x: (layer_norm(x, [5], w, b) * b).sum()))(x)",
        "torch.func.grad(lambda x: (torch.nn.functional.layer_norm(x, (5,), w, b) * b).sum())(x)",
    ),
    answers(
        "torch.func.vjp(lambda x: rms_norm(x, [5], w), x)[1](y)[0]",
        "torch.func.vjp(lambda x: torch.nn.functional.rms_norm(x, (5,), w), x)[1](y)[0]",
    ),
    answers(
        "torch.func.grad(lambda x: (masked_softmax(x, mask) * y).sum())(x)",
        "torch.func.grad(lambda x: (x.masked_fill(~mask, -inf).softmax(-1) * y).sum())(x)",
    ),
    answers(
        "torch.func.grad(lambda x: (softmax_(x * 1, -1) * y).sum())(x)",
        "torch.func.grad(lambda x: (x.softmax(-1) * y).sum())(x)",
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


def test_vmap_refuses_what_the_loop_refuses(judge):
    judge(UNDER_VMAP)


def test_forward_mode_is_right_or_refused_and_never_silently_zero(judge):
    judge(JVP)


def test_other_transforms_and_modes_give_the_right_result(judge):
    judge(GRADIENTS + UNDER_MODES)
