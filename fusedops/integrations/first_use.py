"""Imports the rules for DTensor when an op first gets a DTensor, so that ``import fusedops`` does
not import ``torch.distributed.tensor``, which takes 0.6 s.

Before torch passes a call to the ``__torch_dispatch__`` of a subclass of Tensor, it asks the op's
registry entry for a rule of that class. Asked about DTensor for the first time, the entry of one of
our ops imports the rules, which register themselves with
``torch.library.register_torch_dispatch``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch._library import simple_registry

from fusedops.ops.registration.libraries import OPS

_RULES = "fusedops.integrations.dtensor"


class _ImportingRules(simple_registry.GenericTorchDispatchRuleHolder):
    """Holds the dispatch rules of one op, and imports those for DTensor when first asked for
    one."""

    def find(self, torch_dispatch_class: type) -> Callable[..., Any] | None:
        rule = super().find(torch_dispatch_class)
        if rule is None and _is_dtensor(torch_dispatch_class):
            importlib.import_module(_RULES)
            rule = super().find(torch_dispatch_class)
        return rule


def _is_dtensor(torch_dispatch_class: type) -> bool:
    """Whether a class is DTensor itself. Subclasses of DTensor pass their calls on to DTensor."""
    module, name = torch_dispatch_class.__module__, torch_dispatch_class.__name__
    return name == "DTensor" and module.startswith("torch.distributed.")


def import_rules_on_first_use() -> None:
    """Gives every op a registry entry that imports the rules for DTensor when asked for one."""
    for op in OPS:
        name = f"fusedops::{op}"
        simple_registry.singleton.find(name).torch_dispatch_rules = _ImportingRules(name)
