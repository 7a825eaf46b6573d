"""The docstring of fusedops.graph.rules shows a rule, which works as it stands there."""

import re
import textwrap

import torch

from fusedops.graph import rules
from fusedops.graph.analysis import aliases
from fusedops.graph.analysis.calls import Call
from fusedops.graph.analysis.steps import call_of
from fusedops.graph.rewriting import rewriter
from fusedops.graph.rule import Match, Rule


def rule_of_the_docstring():
    source = re.search(r"^    class Silu.*?(?=^\S)", rules.__doc__, re.S | re.M).group()
    names = {"Rule": Rule, "Match": Match, "Call": Call, "call_of": call_of}
    exec(textwrap.dedent(source), names)
    return names["Silu"]()


def test_the_rule_of_the_docstring_replaces_what_it_says(monkeypatch, rewrite_dynamo):
    monkeypatch.setitem(aliases.FUNCTIONS, torch.sigmoid, ("sigmoid", ("input",)))
    monkeypatch.setattr(rewriter, "RULES", (rule_of_the_docstring(), *rules.RULES))
    with torch.library._scoped_library("fusedops", "FRAGMENT") as library:
        library.define("silu(Tensor input) -> Tensor")
        library.impl("silu", torch.nn.functional.silu, "CompositeImplicitAutograd")
        rewritten = rewrite_dynamo(lambda x: x * torch.sigmoid(x), torch.randn(4, 8))
    assert rewritten.replaced == {"silu": 1} and rewritten.calls == ["silu(x)"]
