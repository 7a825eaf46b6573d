"""What mkdocs does to pages and docstrings on their way to the site (mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A link to a file of the checkout, which the site does not have: a source, a README, a CSV.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)\s]+|results/[^)\s]+)\)")
FUNCTION = re.compile(r":(?:func|class|mod):`([^`]+)`")
FORMULA = re.compile(r":math:`([^`]+)`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leaves the text of links that lead out of the site; the tests check where those lead."""
    return OUTSIDE.sub(r"\1", markdown)


class SphinxRoles(griffe.Extension):
    """Docstrings name functions and write formulas as Sphinx does, which the site's markdown has
    other marks for."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = FUNCTION.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = FORMULA.sub(r"$\1$", text)
