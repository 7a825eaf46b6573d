"""Keeps selective activation checkpointing as it was in regions that were rewritten.

The user's policy for such a region says for each ATen operator whether its results are saved for
the backward pass or computed again. The policy does not know the op of fusedops that took an
operator's place, so that the op's results would be computed again. After a rewrite the policy is
therefore asked about the operators that an op has replaced, before it is asked about the op itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten

#: Part of our op's name -> the ATen operators that it may have replaced, which users' checkpoint
#: policies name. The first key that the op's name contains counts.
_REPLACED: dict[str, tuple[torch._ops.OpOverload, ...]] = {
    "log_softmax": (aten._log_softmax.default, aten.log_softmax.int),
    "softmax": (aten._softmax.default, aten.softmax.int, aten._safe_softmax.default),
    "layer_norm": (
        aten.native_layer_norm.default,
        aten.layer_norm.default,
        aten.native_group_norm.default,
    ),
    "rms_norm": (aten._fused_rms_norm.default, aten.rms_norm.default),
}
#: The decisions by which a policy keeps results. Older policies return True.
_SAVES = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, True)
#: The key of a graph module's `meta` for the function that makes the contexts of a region.
_META = "_checkpoint_context_fn"

ContextFn = Callable[[], tuple[Any, Any]]


def keep_selection(graph: Graph) -> None:
    """Makes the policy of a checkpointed region apply to our ops, if `graph` is the body of such a
    region. A second call does nothing."""
    meta = {} if graph.owning_module is None else graph.owning_module.meta
    if _META in meta and not isinstance(meta[_META], _Contexts):
        meta[_META] = _Contexts(meta[_META])


class _Contexts:
    """Makes the two contexts of a checkpointed region, one for the forward pass and one for the
    recomputation. Both contexts have a policy that also applies to our ops."""

    def __init__(self, context_fn: ContextFn) -> None:
        self._context_fn = context_fn
        # Without this attribute torch does not cache the region.
        if hasattr(context_fn, "cache_hash"):
            self.cache_hash = context_fn.cache_hash

    def __call__(self) -> tuple[Any, Any]:
        contexts = self._context_fn()
        for context in contexts:
            policy = getattr(context, "policy_fn", None)
            if policy is not None:
                context.policy_fn = functools.partial(_policy, policy)
        return contexts


def _policy(
    user_policy: Callable[..., Any], context: Any, op: Any, *args: Any, **kwargs: Any
) -> Any:
    """Asks the user's policy about the operators that an op has replaced. Returns the policy's
    decision for the first operator whose results are saved, else its decision for the op itself."""
    decisions = (user_policy(context, each, *args, **kwargs) for each in _replaced_by(op))
    kept = next((decision for decision in decisions if decision in _SAVES), None)
    return user_policy(context, op, *args, **kwargs) if kept is None else kept


def _replaced_by(op: Any) -> tuple[torch._ops.OpOverload, ...]:
    """Returns the ATen operators that an op of ours may have replaced; none for a backward op."""
    namespace, _, name = str(getattr(op, "name", str)()).partition("::")
    if namespace != "fusedops" or "backward" in name:
        return ()
    return next((replaced for part, replaced in _REPLACED.items() if part in name), ())
