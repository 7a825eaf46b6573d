"""All rewrite rules, in the order in which they are tried: those that fuse more nodes first."""

from __future__ import annotations

from fusedops.graph.readers.softmax_chain import Softmax
from fusedops.graph.rule import Rule
from fusedops.graph.rules.add_norm import AddNorm
from fusedops.graph.rules.group_norm import GroupNorm
from fusedops.graph.rules.l2_norm_decomposed import L2NormDecomposed
from fusedops.graph.rules.layer_norm import LayerNorm
from fusedops.graph.rules.layer_norm_decomposed import LayerNormDecomposed
from fusedops.graph.rules.leaf import Leaf
from fusedops.graph.rules.masked_softmax import MaskedSoftmax
from fusedops.graph.rules.permuted_norm import PermutedNorm
from fusedops.graph.rules.rms_norm import RmsNorm
from fusedops.graph.rules.rms_norm_decomposed import RmsNormDecomposed
from fusedops.graph.rules.softmax_decomposed import SoftmaxDecomposed
from fusedops.graph.rules.spatial_norm_decomposed import (
    SpatialLayerNormDecomposed,
    SpatialRmsNormDecomposed,
)
from fusedops.graph.rules.stack import Stack

NORMS: tuple[Rule, ...] = (LayerNorm(), LayerNormDecomposed(), RmsNorm(), RmsNormDecomposed())
RULES: tuple[Rule, ...] = (
    MaskedSoftmax(),
    Softmax(),
    SoftmaxDecomposed(),
    *map(PermutedNorm, NORMS),
    *map(AddNorm, NORMS),
    *NORMS,
    L2NormDecomposed(),
    SpatialLayerNormDecomposed(),
    SpatialRmsNormDecomposed(),
    GroupNorm(),
    Leaf(),
)
#: Rules for sites that contain other sites; they are tried on the whole graph first.
STACKS: tuple[Rule, ...] = (Stack(RULES),)
