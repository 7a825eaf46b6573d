"""Lists all rewrite rules, and shows how to write one.

A rule finds a computation in a graph and says which op computes it. This one replaces
x * sigmoid(x) by an op `silu(input)`, which has to be registered as `torch.ops.fusedops.silu`:

    class Silu(Rule):
        name = "silu"

        def match(self, call: Call) -> Match | None:
            if call.kind != "mul":
                return None
            x, other = call.operands
            sigmoid = call_of(other, "sigmoid")
            if sigmoid is None or sigmoid.input is not x:
                return None
            site = Call("silu", "silu", call.node, {"input": x})
            return Match(site, {call.node: None}, (sigmoid.node, call.node))

`match` is called for every node that has a normal form, with its `Call`: the `kind` is one word for
all aliases of an operation, and `arguments` have torch's names. A kind that no rule has needed yet,
such as "sigmoid", gets a line in `analysis/aliases.py`. `call_of` returns the call that computes an
operand, and `value` what capture recorded for a node: a fake tensor with shape, dtype and strides.
A rule looks at nothing else, so that it holds for torch IR, ATen IR and modules alike.

A `Match` is a site: a call with the op's name and its arguments, in the op's order; the nodes that
the op's outputs replace (by index, None for a single output); and the nodes that the op fuses, in
program order. The site may still be refused, since the rewriter goes on to prove that

    the input is a plain tensor on a device with kernels          availability.py
    nothing writes in between into memory that is read            analysis/storages.py
    all calls run in the same grad, autocast and inference modes  analysis/modes.py
    the replacement pays on this machine                          policy/decision.py
    its dtype, device, shape and strides are eager's              rewriting/rewriter.py

If the op cannot compute what the site computes, the `refusal` of the match's call says why, for the
report. `Rule.refusal` does the same for reasons that can be asked for only once the input is known
to be a tensor, such as its dtype. `Rule.emit` is overridden if the op needs other arguments to give
eager's dtype. Fused nodes that have other users stay in the graph; the rewriter sees to that.

The rule goes into RULES below, before rules that find a part of what it finds, and its name into
`fusedops.config.RULES`. What several rules recognise is in `readers/`. To see what a rule did:

    print(fusedops.explain(model, *inputs))         each site, with the refusal if it was left
    print(fusedops.explain(model, *inputs).diff())  the graph before and after

Source: `torch/_inductor/pattern_matcher.py`, whose patterns are traced functions. A pattern is one
graph, while a reader recognises all orders and casts in which models write a norm.
"""

from __future__ import annotations

from fusedops.graph.readers.softmax_chain import read_softmax
from fusedops.graph.readers.softmax_decomposed import read_softmax_decomposed
from fusedops.graph.rule import Rule
from fusedops.graph.rules.add_norm import AddNorm
from fusedops.graph.rules.cross_entropy import CrossEntropy
from fusedops.graph.rules.dropout import Dropout
from fusedops.graph.rules.group_norm import GroupNorm
from fusedops.graph.rules.leaf import Leaf
from fusedops.graph.rules.linear_cross_entropy import LinearCrossEntropy
from fusedops.graph.rules.masked_softmax import MaskedSoftmax
from fusedops.graph.rules.norm import Norm
from fusedops.graph.rules.norm_decomposed import NormDecomposed
from fusedops.graph.rules.permuted_norm import PermutedNorm
from fusedops.graph.rules.softmax import Softmax
from fusedops.graph.rules.stack import Stack

NORMS: tuple[Rule, ...] = (
    Norm("layer_norm", "native_layer_norm"),
    NormDecomposed("layer_norm_decomposed", "layer_norm", "std_norm"),
    Norm("rms_norm", "fused_rms_norm"),
    NormDecomposed("rms_norm_decomposed", "rms_norm"),
)
#: The rules in the order in which they are tried: those that fuse more nodes come first.
RULES: tuple[Rule, ...] = (
    MaskedSoftmax(),
    Softmax("softmax", read_softmax),
    Softmax("softmax_decomposed", read_softmax_decomposed),
    *map(PermutedNorm, NORMS),
    *map(AddNorm, NORMS),
    *NORMS,
    NormDecomposed("l2_norm_decomposed", "l2_norm"),
    NormDecomposed("spatial_layer_norm_decomposed", "spatial_layer_norm"),
    NormDecomposed("spatial_rms_norm_decomposed", "spatial_rms_norm"),
    GroupNorm(),
    Leaf(),
)
#: The rules that are tried on the whole graph before RULES, because they find sites that contain
#: sites of RULES: a stack of softmaxes, or a cross entropy, which contains a log_softmax.
STACKS: tuple[Rule, ...] = (Stack(RULES), LinearCrossEntropy(), CrossEntropy())
#: The rules that are tried on what RULES leave.
REST: tuple[Rule, ...] = (Dropout(),)
