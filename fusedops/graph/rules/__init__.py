"""All rewrite rules, in the order in which they are tried: those that fuse more nodes first."""

from __future__ import annotations

from fusedops.graph.rule import Rule
from fusedops.graph.rules.add_norm import AddNorm
from fusedops.graph.rules.group_norm import GroupNorm
from fusedops.graph.rules.leaf import Leaf
from fusedops.graph.rules.masked_softmax import MaskedSoftmax
from fusedops.graph.rules.norm import Norm
from fusedops.graph.rules.norm_decomposed import NormDecomposed
from fusedops.graph.rules.permuted_norm import PermutedNorm
from fusedops.graph.rules.softmax import Softmax
from fusedops.graph.rules.softmax_decomposed import SoftmaxDecomposed
from fusedops.graph.rules.stack import Stack

NORMS: tuple[Rule, ...] = (
    Norm("layer_norm", "native_layer_norm"),
    NormDecomposed("layer_norm_decomposed", "layer_norm", "std_norm"),
    Norm("rms_norm", "fused_rms_norm"),
    NormDecomposed("rms_norm_decomposed", "rms_norm"),
)
RULES: tuple[Rule, ...] = (
    MaskedSoftmax(),
    Softmax(),
    SoftmaxDecomposed(),
    *map(PermutedNorm, NORMS),
    *map(AddNorm, NORMS),
    *NORMS,
    NormDecomposed("l2_norm_decomposed", "l2_norm"),
    NormDecomposed("spatial_layer_norm_decomposed", "spatial_layer_norm"),
    NormDecomposed("spatial_rms_norm_decomposed", "spatial_rms_norm"),
    GroupNorm(),
    Leaf(),
)
#: Rules for sites that contain other sites; they are tried on the whole graph first.
STACKS: tuple[Rule, ...] = (Stack(RULES),)
