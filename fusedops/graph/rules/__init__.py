"""Every rewrite the package knows, those that take in more first."""

from __future__ import annotations

from fusedops.graph.rule import Rule
from fusedops.graph.rules.add_norm import AddNorm
from fusedops.graph.rules.layer_norm import LayerNorm
from fusedops.graph.rules.layer_norm_by_hand import LayerNormByHand
from fusedops.graph.rules.leaf import Leaf
from fusedops.graph.rules.masked_softmax import MaskedSoftmax
from fusedops.graph.rules.rms_norm import RmsNorm
from fusedops.graph.rules.rms_norm_by_hand import RmsNormByHand
from fusedops.graph.rules.softmax import Softmax
from fusedops.graph.rules.softmax_by_hand import SoftmaxByHand
from fusedops.graph.rules.stack import Stack

NORMS: tuple[Rule, ...] = (LayerNorm(), LayerNormByHand(), RmsNorm(), RmsNormByHand())
RULES: tuple[Rule, ...] = (
    MaskedSoftmax(),
    Softmax(),
    SoftmaxByHand(),
    *map(AddNorm, NORMS),
    *NORMS,
    Leaf(),
)
#: Rules for sites that contain other sites: a graph is searched for these first.
STACKS: tuple[Rule, ...] = (Stack(RULES),)
