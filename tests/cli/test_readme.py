"""Python blocks of the README and of docs/ run as they stand, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch._dynamo.utils import counters

import fusedops

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "tests/simt/README.md",
]
#: By their text: the first page of the site has the README's example.
BLOCKS = {
    block: f"{page.relative_to(ROOT)} {i}"
    for page in PAGES
    for i, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )
}
#: The calls that replace what pays.
REWRITES = re.compile(r'backend="fusedops"|fusedops\.patch\(|export\.(rewrite|package)|onnx|Pass\(')


@pytest.mark.slow("a page of deployment compiles a package")
@pytest.mark.parametrize(("block", "name"), BLOCKS.items(), ids=BLOCKS.values())
def test_python_block_runs_and_replaces_what_it_rewrites(block, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counted = counters["fusedops"]
    counted.clear()
    with fusedops.config.patch(fuse="profitable"):  # as a reader has it
        exec(compile(block, name, "exec"), {"__name__": "readme"})
    replaced = counted.total() - counted["left"]
    assert (replaced > 0) == bool(REWRITES.search(block)), counted


def test_the_first_page_of_the_site_has_the_blocks_and_the_table_of_the_readme():
    readme, first = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    for shared in (r"^```.*?^```", r"^\| \| training.*?\n\n"):
        found = re.findall(shared, first, re.MULTILINE | re.DOTALL)
        assert found and all(block in readme for block in found)


def test_the_reasons_that_a_page_explains_are_in_the_code():
    section = (ROOT / "docs/rewriting.md").read_text().split("## Why a site was left")[1]
    rows = re.findall(r"^\| (`.*?) \| ", section.split("##")[0], re.MULTILINE)
    code = "".join(path.read_text() for path in (ROOT / "fusedops/graph").rglob("*.py"))
    for reason in re.findall(r"`(.+?)`", " ".join(rows)):
        for part in reason.split("..."):
            assert part.strip(" ,") in code, reason


def anchors(page: Path) -> set[str]:
    """The names that a page's headings have in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link
