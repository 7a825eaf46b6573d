"""Defines the hooks of mkdocs (mkdocs.yml) that convert pages and docstrings for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A link to a file of the checkout that the site does not have, such as a source file or a CSV.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)\s]+|results/[^)\s]+)\)")
FUNCTION = re.compile(r":(?:func|class|mod):`([^`]+)`")
FORMULA = re.compile(r":math:`([^`]+)`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Returns a page with the text of a link in place of each link to a file outside of the site.
    Tests check the targets of these links."""
    return OUTSIDE.sub(r"\1", markdown)


class SphinxRoles(griffe.Extension):
    """Converts Sphinx's roles for functions and formulas in docstrings to markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = FUNCTION.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = FORMULA.sub(r"$\1$", text)
