"""Imports the rules for DTensor when an op first gets one, so that ``import fusedops`` does not
import ``torch.distributed.tensor``, which takes 0.6 s.

Before a subclass of Tensor sees a call, torch asks the op's registry entry for a rule of that
class. The entries of our ops answer the first question about DTensor by importing the rules, which
register themselves with ``torch.library.register_torch_dispatch``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch._library import simple_registry

from fusedops.ops.registration.libraries import OPS

_RULES = "fusedops.integrations.dtensor"


class _ImportingRules(simple_registry.GenericTorchDispatchRuleHolder):
    """Holds the rules of one op, and imports those for DTensor when first asked."""

    def find(self, torch_dispatch_class: type) -> Callable[..., Any] | None:
        rule = super().find(torch_dispatch_class)
        if rule is None and _is_dtensor(torch_dispatch_class):
            importlib.import_module(_RULES)
            rule = super().find(torch_dispatch_class)
        return rule


def _is_dtensor(torch_dispatch_class: type) -> bool:
    """Whether a class is DTensor itself, to which its subclasses hand their calls on."""
    module, name = torch_dispatch_class.__module__, torch_dispatch_class.__name__
    return name == "DTensor" and module.startswith("torch.distributed.")


def import_rules_on_first_use() -> None:
    """Makes the registry entry of every op one that imports the rules for DTensor when asked."""
    for op in OPS:
        name = f"fusedops::{op}"
        simple_registry.singleton.find(name).torch_dispatch_rules = _ImportingRules(name)
