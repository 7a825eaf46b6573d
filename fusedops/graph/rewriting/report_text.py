"""Writes the report of a rewrite as text: the expected saving, then one entry for each group of
equal sites, which are the softmaxes and norms that were found."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fusedops.graph.analysis.aliases import SDPA
from fusedops.graph.policy.decision import BECOMES_SDPA, Estimate, as_time

if TYPE_CHECKING:
    from fusedops.graph.rewriting.report import Report, Site

#: Lines are at least this wide, in characters, even if the terminal is narrower.
_NARROWEST = 40


def as_text(report: Report) -> str:
    """Returns the report as text: a summary, an entry for each group of sites that differ only in
    their module, and the tables of measurements that were used."""
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    lines = [summary(report), _left_on_purpose(report)]
    paragraphs = ["\n".join(_wrapped(line, "", width) for line in lines if line)]
    paragraphs += [_entry(sites, width) for sites in _groups(report.sites)]
    tables = dict.fromkeys(site.figures.table for site in report.sites if site.figures)
    paragraphs += [_wrapped(f"measurements: {table}", "  ", width) for table in tables]
    return "\n\n".join(paragraphs)


def summary(report: Report) -> str:
    """Returns one line, which says how many sites were replaced, and how much time that is expected
    to save in a call."""
    mode = f" in {report.mode}" if report.mode else ""
    wanted = [site for site in report.sites if not site.left_on_purpose]
    counted = f"fusedops: {len(report.replaced)} of {len(wanted)} sites replaced{mode}"
    if not report.sites:
        none = "found no softmax or norm" if report.graphs else "captured no graph"
        return f"{counted}: torch.compile {none}"
    expected = _expected([site.figures for site in report.replaced if site.figures])
    return f"{counted}; {expected}" if expected else counted


def _expected(figures: Sequence[Estimate]) -> str:
    """Returns a text that says how much time the replaced sites save in a call, as far as they were
    measured; "" if none was, or if all are empty tensors, which take no time."""
    inductor = sum(each.inductor_ms for each in figures)
    if not inductor:
        return ""
    saved = inductor - sum(each.ours_ms for each in figures)
    return (
        f"a call is expected to take {as_time(saved)} less, {saved / inductor:.0%} of what these "
        "sites take in Inductor's code"
    )


def _left_on_purpose(report: Report) -> str:
    """Returns a text with the number of sites that are left on purpose, and what speed-up to
    expect; "" if there are no such sites."""
    counted = Counter(site.op for site in report.sites if site.left_on_purpose)
    if not counted:
        return ""
    kinds = ", ".join(f"{count} x {op}" for op, count in counted.items())
    return f"Left on purpose, and not counted: {kinds}.{_if_only_norms_gain(report)}"


def _if_only_norms_gain(report: Report) -> str:
    """Returns a text which says that little can be gained, if the model's attention already runs as
    `scaled_dot_product_attention`. Returns "" if it does not, or if a softmax was replaced."""
    attention = any(site.reason in (SDPA, BECOMES_SDPA) for site in report.sites)
    if not attention or any("softmax" in site.op for site in report.replaced):
        return ""
    expected = "little" if report.replaced else "nothing"
    return f" Expect {expected} of a model whose attention runs as scaled_dot_product_attention."


def _groups(sites: Iterable[Site]) -> list[list[Site]]:
    """Returns the sites in groups. The sites of a group differ only in the numbers in the paths of
    their modules, such as the number of the layer."""
    groups: dict[Site, list[Site]] = {}
    for site in sites:
        alike = replace(site, module=re.sub(r"\d+", "*", site.module))
        groups.setdefault(alike, []).append(site)
    return list(groups.values())


def _entry(sites: list[Site], width: int) -> str:
    """Returns the entry of a group of sites: a title, and a line for each fact about them."""
    site = sites[0]
    what = "replaced" if site.replaced else "left"
    rule = "" if site.rule in (site.op, "leaf") else f" by {site.rule}"
    title = f"{what}  {site.op}{rule}"
    if len(sites) > 1:
        title += f"  {len(sites)} times"
    shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in site.shapes)
    facts = (
        ("module", _modules(sites)),
        ("line", site.location),
        ("inputs", shapes),
        ("times", _times(site.figures)),
        ("traffic", f"{site.bytes_saved:,} bytes less" if site.bytes_saved else ""),
        ("why not", site.reason),
        ("note", site.note),
    )
    lines = [_wrapped(f"{name:<9}{fact}", "  ", width, hang=9) for name, fact in facts if fact]
    return "\n".join([title, *lines])


def _modules(sites: list[Site]) -> str:
    """Returns the paths of the sites' modules as one path, with * for each number in which they
    differ."""
    paths = list(dict.fromkeys(site.module for site in sites))
    if len(paths) == 1:
        return paths[0]
    parts = [re.split(r"(\d+)", path) for path in paths]
    columns = (set(column) for column in zip(*parts, strict=True))
    return "".join(column.pop() if len(column) == 1 else "*" for column in columns)


def _times(figures: Estimate | None) -> str:
    """Returns the measurements as text: "30 us + 4 us for reads and writes of its neighbours,
    Inductor 41 us; from 32x512 measured in training"."""
    if figures is None:
        return ""
    ours, passes, inductor = map(
        as_time, (figures.fusedops_ms, figures.passes_ms, figures.inductor_ms)
    )
    if figures.products:
        ours += " with its matrix products"
    neighbours = f" + {passes} for reads and writes of its neighbours" if figures.passes_ms else ""
    size = f"{figures.rows}x{figures.cols}"
    return f"{ours}{neighbours}, Inductor {inductor}; from {size} measured in {figures.mode}"


def _wrapped(text: str, indent: str, width: int, hang: int = 0) -> str:
    following = indent + " " * hang
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=following, break_on_hyphens=False
    )
