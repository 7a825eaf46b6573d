"""Reports which modules of a model were replaced and which were left, and undoes the
replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn


@dataclass(frozen=True)
class ReplacedModule:
    """Describes a softmax or norm module of a model.

    paths: its dotted paths in the model: several if it is shared, and "" for the model itself.
    was: the name of its original class.
    became: the name of its new class, or "" if it was not replaced.
    reason: why it was not replaced, or "" if it was.
    """

    paths: tuple[str, ...]
    was: str
    became: str = ""
    reason: str = ""


@dataclass
class Replacements:
    """Says what `replace_modules` did to a model. `str(replacements)` is a plain-text table.

    modules: every softmax and norm module, in the model's order.
    """

    modules: tuple[ReplacedModule, ...]
    _changes: list[Change] = field(repr=False)

    @property
    def replaced(self) -> tuple[ReplacedModule, ...]:
        return tuple(module for module in self.modules if module.became)

    @property
    def left(self) -> tuple[ReplacedModule, ...]:
        return tuple(module for module in self.modules if not module.became)

    def undo(self) -> None:
        """Gives the replaced modules their original classes back. Parameters keep their current
        values. A second call does nothing.

        Raises:
            RuntimeError: the class or the ``forward`` of a module has changed since the
                replacement, as by a parametrization or by hooks that wrap ``forward``. In this case
                no module is changed.
        """
        for change in self._changes:
            if type(change.module) is not change.new_class:
                raise RuntimeError(
                    f"undo: a {change.new_class.__name__} has become a "
                    f"{type(change.module).__name__} since; undo that first"
                )
            if "forward" in vars(change.module):
                raise RuntimeError(
                    f"undo: the forward of a {change.new_class.__name__} has been replaced on the "
                    "object since; delete that first"
                )
        for change in self._changes:
            change.undo()
        self._changes.clear()

    def __str__(self) -> str:
        counted = f"{len(self.replaced)} of {len(self.modules)}"
        summary = f"fusedops: {counted} modules replaced"
        if not self.modules:
            return summary
        rows = [(", ".join(m.paths), m.was, m.became or "-", m.reason) for m in self.modules]
        return "\n".join([summary, "", *_table(("module", "was", "became", "reason"), rows)])


@dataclass(frozen=True)
class Change:
    """Records a module's change of class, and the attributes that were added to it."""

    module: nn.Module
    old_class: type[nn.Module]
    new_class: type[nn.Module]
    added: tuple[str, ...]

    def undo(self) -> None:
        self.module.__class__ = self.old_class
        for name in self.added:
            delattr(self.module, name)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns the lines of a plain-text table."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
