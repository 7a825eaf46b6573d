"""tools/plot_results.py, which `make plots` runs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import plot_results
import pytest

ROOT = Path(__file__).parents[2]


def test_the_pictures_of_the_docs_are_those_it_draws(tmp_path):
    plot_results.main(["--output", str(tmp_path)])
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in plot_results.IMAGES.iterdir()}
    names = ("benchmarks.md", "models.md", "models_details.md")
    pages = [(ROOT / "docs" / name).read_text() for name in names]
    for path in tmp_path.iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert f"](images/{path.name})" in "".join(pages)


def test_a_bar_is_the_geometric_mean_over_the_shapes():
    axes = plot_results.operators().axes[0]  # of float32
    labels = [label.get_text() for label in axes.get_yticklabels()]
    ours = axes.containers[[bars.get_label() for bars in axes.containers].index("fusedops")]
    bar = ours.patches[labels.index("softmax forward")]
    table = plot_results.pd.read_csv(plot_results.ZEN4 / "bench-quick.csv")
    rows = table.query(
        "op == 'softmax' and direction == 'forward' and dtype == 'float32' "
        "and provider == 'fusedops'"
    )
    ratios = rows.speedup_over_eager
    assert len(ratios) == 3
    assert bar.get_width() == pytest.approx(ratios.prod() ** (1 / 3))
