"""Defines the losses that `tune` measures, in graphs that also compute the logits.

Why the logits too? In a model the graph computes them by a matrix product. Unless the model returns
them, the backward pass overwrites them with their gradient, for which neither Inductor's code nor
ours allocates memory. If the logits were inputs of the graph, their gradient would need memory of
its own, and the page faults of that memory would be timed. The product itself takes little time,
because its inner dimension has only FEATURES elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops.cli.bench.cases import Case, Layout, Operator
from fusedops.cli.bench.operators import classes

FEATURES = 8


def _weight_and_classes(case: Case) -> tuple[Tensor, ...]:
    """Returns the product's weight, [FEATURES, classes], and a random class for each row."""
    weight = case.random(seed=1)[:1].expand(FEATURES, -1).contiguous()
    return weight, *classes(case)


def _few_features(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Returns FEATURES columns of x, which the weight multiplies, and the other inputs."""
    return x[:, :FEATURES].contiguous(), *others


def _cross_entropy(keeps_logits: bool) -> Operator:
    """Returns the operator that computes logits by a matrix product, and their mean cross entropy.
    If ``keeps_logits``, it also returns the logits, so that they cannot be overwritten."""

    def of_logits(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
        def of_product(x: Tensor, weight: Tensor, target: Tensor) -> Any:
            logits = x @ weight
            mean = loss(logits, target)
            return (mean, logits.detach()) if keeps_logits else mean

        return of_product

    return Operator(
        eager=of_logits(F.cross_entropy),
        fused=of_logits(fusedops.cross_entropy),
        operands=_weight_and_classes,
        layout=Layout.LOGITS,
        differentiated=2,  # the two factors of the product
        split=_few_features,
    )


LOSSES = {
    "cross_entropy": _cross_entropy(keeps_logits=False),
    "cross_entropy[kept]": _cross_entropy(keeps_logits=True),
}
