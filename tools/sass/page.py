"""The tables of docs/cuda_model_details.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .errors import ReportError
from .limits import limit_lines
from .model import Prediction
from .predict import DTYPES, OPS
from .toolchain import ROOT

PAGE = ROOT / "docs" / "cuda_model_details.md"
BEGIN, END = "<!-- tables: written by tools/sass_report.py -->", "<!-- end of the tables -->"
COLS = (49, 577, 1024, 4096, 16384, 32768, 65536, 262144)


def write_page(rows: Sequence[Prediction]) -> None:
    """Writes the tables into the page, between its two marks."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{PAGE} lacks the lines {BEGIN!r} and {END!r}")
    text = "\n".join(page_lines(rows))
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def page_lines(rows: Sequence[Prediction]) -> Iterator[str]:
    for dtype in DTYPES:
        yield f"{dtype}, tensors of 1 GB: share of a copy, issue, bytes"
        yield ""
        yield f"| | {' | '.join(str(cols) for cols in COLS)} |"
        yield f"| --- |{' --- |' * len(COLS)}"
        for op in OPS:
            cells = [cell(rows, op, dtype, cols) for cols in COLS]
            yield f"| {op} | {' | '.join(cells)} |"
        yield ""
    for line in limit_lines(rows):
        yield f"- {line}"


def cell(rows: Sequence[Prediction], op: str, dtype: str, cols: int) -> str:
    """The share of a copy, the issue and the bytes of a shape's larger tensor."""
    of = [row for row in rows if (row.op, row.dtype, row.cols) == (op, dtype, cols)]
    if not of:
        return ""
    row = max(of, key=lambda one: one.rows)
    return f"{row.share:.0%}, {row.issue:.2f}, {row.bytes_u:.1f}u"
