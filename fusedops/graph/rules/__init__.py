"""Every rewrite the package knows; each site is claimed by the first rule that recognises it."""

from __future__ import annotations

from fusedops.graph.rule import Rule
from fusedops.graph.rules.layer_norm import LayerNorm
from fusedops.graph.rules.leaf import Leaf
from fusedops.graph.rules.rms_norm import RmsNorm
from fusedops.graph.rules.rms_norm_by_hand import RmsNormByHand
from fusedops.graph.rules.softmax import Softmax

RULES: tuple[Rule, ...] = (Softmax(), LayerNorm(), RmsNorm(), RmsNormByHand(), Leaf())
