"""explain, rewrite, export, enable, patch, config and parallel_stack with bad arguments."""

from bad_calls import answers, clear, refused

FUSE = {
    "3": "3, of type int; set it with .* to a string",
    "None": "None, of type NoneType; set it with .* to a string",
    "True": "True, of type bool; set it with .* to a string",
    "['always']": r"'always'\], of type list; set it with .* to a string",
    "b'always'": "b'always', of type bytes; set it with .* to a string",
    "''": "'' is unknown",
    "'sometimes'": "'sometimes' is unknown, wanted 'profitable' or 'always' or 'never'",
    "'ALWAYS'": "'ALWAYS'",
    "'always,'": "'always,'",
    "','": "','",
    "'always,softmax'": "softmax",
    "'always,softmax='": "softmax=",
    "'always,softmax=off'": "'off' is unknown, wanted 'profitable' or",
    "'always,softmx=never'": "'softmx' is unknown, wanted 'masked_softmax' or",
    "'softmax=never'": "begins with softmax=, not with a default mode",
    "'always,=never'": "=never",
    "'always=never'": "always",
    "'always;never'": "always;never",
    "'always,never'": "never",
    "'always\\n,nonsense'": "nonsense",
    "'always,softmax=never=always'": "softmax=never",
}
CONFIG = [
    *(
        refused(f"config.patch(fuse={given}).__enter__()", rf"(?s)fuse.*({got})")
        for given, got in FUSE.items()
    ),
    *(refused(f"config.Config({given})", rf"(?s)fuse.*({got})") for given, got in FUSE.items()),
    *(
        refused(f"config.Config.from_environment({{'FUSEDOPS_FUSE': {given}}})", rf"fuse.*({got})")
        for given, got in FUSE.items()
        if given.startswith("'")
    ),
    refused("config.patch(fuze='never').__enter__()", "no setting 'fuze'; known: fuse"),
    refused("config.patch('never').__enter__()", "positional"),
    refused("fusedops.patch(fuse='never').__enter__()", "fuse"),
    refused("fusedops.enable(3)", "positional"),
    refused("fusedops.disable('x')", "positional"),
    answers("config.patch().__enter__().fuse", "'always'"),
    answers("config.Config(' always , softmax=never ').fuse_for('softmax')", "'never'"),
]

ENTRIES = [
    *(
        refused(f"explain({given}, x)", clear("fn_or_module|model|function", got))
        for given, got in {
            "3": "int",
            "None": "None",
            "'model'": "str",
            "x": "[Tt]ensor",
            "[torch.sin]": "list",
            "{'model': torch.sin}": "dict",
        }.items()
    ),
    refused("explain()", "fn_or_module"),
    refused("explain(torch.nn.Softmax(-1), x, y)", "argument"),
    refused("explain(torch.nn.Softmax(-1), z=x)", "z"),
    refused("explain(torch.add, x)", "missing|argument"),
    refused("explain(torch.nn.Softmax(-1))", r"missing .*'input'; .* as explain\(model, x"),
    refused(
        "explain(torch.nn.Bilinear(5, 5, 1), {'x': x})", r"missing .* explain\(model, \*\*batch"
    ),
    refused("explain(torch.nn.Bilinear(5, 5, 1), (x, x))", r"missing .* explain\(model, \*inputs"),
    *(
        refused(f"fusedops.backend.backend(None, [], options={{'{given}': True}})", says)
        for given, says in {
            "max_autotune_gem": "list_options.* did you mean 'max_autotune_gemm'",
            "fuse": r"a setting of fusedops.* fusedops.config.patch\(fuse=",
        }.items()
    ),
    refused(
        "torch.jit.script(nn.LayerNorm(5))", "LayerNorm: torch.jit.script .* use torch.jit.trace"
    ),
    refused("explain(torch.nn.Softmax(5), x)", r"(?s)[Dd]im"),
    refused("explain(raises(ValueError('mine')), x)", "mine"),
    *(
        refused(f"rewrite({given}, x)", clear("graph_module", got))
        for given, got in {
            "3": "int",
            "None": "None",
            "'model'": "str",
            "x": "Tensor",
            "torch.nn.Softmax(-1)": "is of type Softmax, wanted a torch.fx.GraphModule",
            "torch.sin": "builtin",
            "torch.fx.symbolic_trace(torch.nn.Softmax(-1)).graph": "Graph",
            "torch.export.export(torch.nn.Softmax(-1), (x,))": "ExportedProgram",
        }.items()
    ),
    refused("rewrite()", "graph_module"),
    refused(
        "rewrite(torch.fx.symbolic_trace(torch.nn.Softmax(-1)))",
        r"got 0 example_inputs, the graph takes 1 \(input",
    ),
    refused("rewrite(torch.fx.symbolic_trace(torch.nn.Softmax(-1)), x, y)", "2 example_inputs"),
    refused("rewrite(torch.fx.symbolic_trace(torch.nn.Softmax(5)), x)(x)", r"(?s)[Dd]im"),
    refused("rewrite(torch.fx.symbolic_trace(torch.nn.Softmax(-1)), 3)", r"(?s)int"),
    refused("rewrite(torch.fx.symbolic_trace(torch.nn.LayerNorm(4)), x)", r"(?s)\[4\]|shape"),
    answers("rewrite(torch.fx.symbolic_trace(torch.nn.Softmax(0)), x)(x)", "torch.softmax(x, 0)"),
    answers(
        "rewrite(torch.fx.symbolic_trace(torch.nn.Softmax(0)), x)(x.half())",
        "torch.softmax(x.half(), 0)",
        1e-3,
    ),
    *(
        refused(f"fusedops.export.rewrite({given})", clear("exported_program", got))
        for given, got in {
            "3": "int",
            "None": "None",
            "'model.pt2'": "str",
            "torch.nn.Softmax(-1)": "is of type Softmax, wanted a torch.export.ExportedProgram",
            "torch.fx.symbolic_trace(torch.nn.Softmax(-1))": "GraphModule|Softmax",
        }.items()
    ),
    *(
        refused(
            f"fusedops.export.package(torch.export.export(torch.nn.Softmax(-1), (x,)), {path})",
            clear("path", got),
        )
        for path, got in {
            "'model.zip'": "ValueError.*is 'model.zip', wanted one in .pt2",
            "'model'": "model",
            "''": "''",
            "3": "int|3",
            "None": "None",
            "['model.pt2']": "list|model.pt2",
        }.items()
    ),
    refused(
        "fusedops.export.package("
        "torch.export.export(torch.nn.Softmax(-1), (x,)), '/nowhere/at/all/model.pt2')",
        "FileNotFoundError.*path is '/nowhere.* no folder '/nowhere/at/all'; create it",
    ),
    refused(
        "fusedops.export.package(3, 'model.pt2')", "fusedops.export.package: exported_program is"
    ),
    refused("fusedops.export.rewrite()", "exported_program"),
    refused('torch.compile(torch.sin, backend="fusedops", mode="fast")(x)', "(?s)mode.*fast"),
    refused(
        'torch.compile(torch.sin, backend="fusedops", options={"fast": 1})(x)',
        "options has 'fast', wanted options of Inductor",
    ),
    refused('torch.compile(torch.sin, backend="fused")(x)', "fused"),
]

PARALLEL = [
    *(
        refused(f"parallel_stack({given}, [x])", clear("functions", got))
        for given, got in {
            "3": "int|iterable",
            "None": "None",
            "'f'": "str",
            "[3]": r"TypeError.*functions\[0\] is of type int, wanted a callable",
            "[None]": "None",
            "[x]": "Tensor",
            "['sin']": "str",
            "torch.nn.ModuleList()": "no functions",
            "[]": "ValueError.*there are no functions",
            "[torch.sin] * 2": "ValueError.*2 functions and 1 inputs, wanted one",
        }.items()
    ),
    *(
        refused(f"parallel_stack(torch.sin, {given})", clear("inputs", got))
        for given, got in {
            "3": "TypeError.*int, wanted a list or another iterable",
            "None": "None",
            "x": "TypeError.*one tensor, wanted one entry a function",
            "'x'": "str",
            "[3]": "int",
            "[None]": "None",
            "[x, [x]]": r"TypeError.*inputs\[1\] is of type list, wanted a tensor or a tuple",
            "[x, 0.5]": "float",
            "[x, {'input': y}]": "dict",
            "[x.numpy()]": "ndarray",
        }.items()
    ),
    *(
        refused(f"parallel_stack(torch.sin, [x, y], {given})", clear("dim", got))
        for given, got in {
            "3": r"IndexError.*3, wanted a value in \[-3, 2\] .*\[3, 5\]",
            "-4": "-4",
            "2**70": f"IndexError.*{2**70}",
            "1.0": "TypeError.*1.0, a float, wanted an int",
            "True": "TypeError.*True, a bool, wanted an int",
            "'0'": "'0'",
            "None": "None",
            "[0]": "list",
            "torch.tensor(0)": "[Tt]ensor",
        }.items()
    ),
    refused("parallel_stack(torch.sin, [])", "ValueError.*no functions"),
    refused("parallel_stack([], [])", "ValueError.*no functions"),
    refused("parallel_stack([torch.sin], [x, y])", clear("functions", "2 inputs")),
    *(
        refused(f"parallel_stack({given})", f"RuntimeError: parallel_stack: branch 1 {says}")
        for given, says in {
            "[torch.sin, torch.sum], [x, y], 1": r"returned shape \[\], wanted \[3, 5\] as",
            "torch.sin, [x, y[:2]]": r"returned shape \[2, 5\], wanted \[3, 5\] as",
            "torch.sin, [x, y.to('meta')]": "has inputs on meta, wanted cpu as branch 0",
            "torch.add, [(x.to('meta'), x), x]": "has inputs on cpu, wanted meta as branch 0",
            "lambda x, on: x.to(on), [(x, 'cpu'), (x, 'meta')]": (
                "returned a tensor on meta, wanted cpu as branch 0 returned"
            ),
        }.items()
    ),
    *(
        refused(
            f"parallel_stack(lambda x: {given}, [x, y])",
            f"TypeError: parallel_stack: branch 0 returned a {kind}, wanted a tensor",
        )
        for given, kind in {
            "None": "NoneType",
            "[x]": "list",
            "x.numpy()": "ndarray",
            "(x, x)": "tuple",
            "(x for _ in range(2))": "generator",
        }.items()
    ),
    refused("parallel_stack(torch.sin, [(x, y, x)])", "(?s)argument"),
    refused("parallel_stack(torch.sin, [()])", "(?s)argument"),
    refused("parallel_stack(raises(ValueError('mine')), [x, y])", "mine"),
    refused("parallel_stack([torch.sin, raises(IndexError('mine'))], [x, y])", "mine"),
    refused("parallel_stack(lambda x: softmax(x, 7), [x, y])", clear("dim", "7")),
    refused("parallel_stack(torch.sin, [x], 0, 0)", "positional"),
    refused("parallel_stack(torch.sin)", "inputs"),
    answers("parallel_stack(torch.sin, [x, y.half()])", "torch.stack([x.sin(), y.half().sin()])"),
    answers("parallel_stack(lambda: x.sum(), [()])", "x.sum().view(1)"),
    answers("parallel_stack(torch.sin, [x.expand(2, 3, 5)])", "x.sin().expand(1, 2, 3, 5)"),
    answers("parallel_stack(lambda x: x, [negative_view(x)])", "x.unsqueeze(0)"),
    answers("parallel_stack(torch.sin, [inference(x), y])", "torch.stack([x.sin(), y.sin()])"),
    answers("parallel_stack(lambda x: parallel_stack(torch.sin, [x, x]), [x, y])[1, 0]", "y.sin()"),
    answers("parallel_stack(torch.sin, [x] * 300).shape", "(300, 3, 5)"),
]


def test_a_setting_that_does_not_exist_is_refused(judge):
    judge(CONFIG)


def test_anything_but_a_model_graph_or_program_is_refused(judge):
    judge(ENTRIES)


def test_branches_that_cannot_be_stacked_are_refused(judge):
    judge(PARALLEL)


def test_branches_that_run_in_turn_are_refused_in_the_same_words(judge):
    refusals = [row for row in PARALLEL if row.refusal]
    judge([row._replace(call=f"under_a_mode(lambda: {row.call})") for row in refusals])
