"""The ways of docs/architecture.md: a call or a node passes few files, and none twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_FILES = 6
HEAD = "| file | symbol | what it does |"


class Step(NamedTuple):
    file: str
    symbol: str


def ways() -> list[list[Step]]:
    """The tables of the page. One that begins where another way passes goes on from there."""
    found: list[list[Step]] = []
    for table in PAGE.split(HEAD)[1:]:
        rows = re.findall(r"^\| \[([^\]]+)\]\([^)]+\) \| `(\w+)`", table.split("\n\n")[0], re.M)
        steps = [Step(*row) for row in rows]
        passed = next((way for way in found[::-1] if steps[0] in way[:-1]), None)
        found.append(passed[: passed.index(steps[0])] + steps if passed else steps)
    return found


WAYS = ways()
SERIAL = [way for way in WAYS if way[0].file != "fusedops/backend.py"]


def source(step: Step) -> str:
    return (ROOT / step.file).read_text()


def names(step: Step, symbol: str) -> bool:
    """Whether a word of a file begins with the symbol: launch_with_workspace does with launch."""
    return re.search(rf"(?<!\w){symbol}", source(step)) is not None


def ids(way: list[Step]) -> str:
    return f"{way[0].symbol} to {way[-1].file}"


def test_the_page_has_the_ways_of_both_devices_and_of_a_node():
    assert len(WAYS) == 5
    assert [len(way) for way in WAYS] == [6, 6, 5, 6, 6]


@pytest.mark.parametrize("way", WAYS, ids=ids)
def test_a_way_opens_few_files_and_none_twice(way):
    files = [step.file for step in way]
    assert len(set(files)) == len(files) <= MOST_FILES


@pytest.mark.parametrize("way", WAYS, ids=ids)
def test_every_file_has_the_symbol_of_its_step(way):
    for step in way:
        assert names(step, step.symbol), step


@pytest.mark.parametrize("way", SERIAL, ids=ids)
def test_every_symbol_is_named_in_a_file_above_its_own(way):
    for index, step in enumerate(way[1:], start=1):
        assert any(names(above, step.symbol) for above in way[:index]), step


def test_the_rewriter_names_what_it_calls_in_turn():
    (node,) = (way for way in WAYS if way not in SERIAL)
    rewriter = next(step for step in node if step.file.endswith("rewriter.py"))
    for step in node[node.index(rewriter) + 1 :]:
        assert names(rewriter, {"Softmax": "RULES"}.get(step.symbol, step.symbol)), step


def test_the_book_adds_a_kind_of_norm_in_five_files_beside_tests_and_pages():
    book = (ROOT / "CONTRIBUTING.md").read_text()
    section = book.split("## Adding an operator")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.M)
    files = [file for row in rows for file in re.findall(r"`([\w./]+)`", row)]
    of_the_kind = [
        f for f in files if not re.match(r"tests/|docs/|CHANGELOG|fusedops/reference", f)
    ]
    assert len(of_the_kind) == 5
    for file in files:
        assert (ROOT / file).exists(), file
