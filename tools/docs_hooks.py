"""Hooks of mkdocs (mkdocs.yml) that convert pages and docstrings for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A link to a file of the checkout, which the site does not have: a source, a README, a CSV.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)\s]+|results/[^)\s]+)\)")
FUNCTION = re.compile(r":(?:func|class|mod):`([^`]+)`")
FORMULA = re.compile(r":math:`([^`]+)`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces links to files outside of the site by their text; the tests check their targets."""
    return OUTSIDE.sub(r"\1", markdown)


class SphinxRoles(griffe.Extension):
    """Converts Sphinx's roles for functions and formulas in docstrings to markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = FUNCTION.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = FORMULA.sub(r"$\1$", text)
