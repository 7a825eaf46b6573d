"""tools/check_comments.py, a part of `make lint`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import check_comments

# The texts are written so that the check does not find them here.
OF = "Of"
FOUND = [
    f"// {OF} the row.",
    f"  # {OF} one tensor.",
    f"#: {OF} rows.",
    f'x = 1\n"""{OF} vectors."""',
]
LEFT = [f"// The sum\n// {OF} the row.", "# Offsets of rows.", '"""The mean. Of rows."""', "of = 1"]


@pytest.mark.parametrize("text", FOUND)
def test_a_comment_that_begins_with_of_is_found(text):
    assert check_comments.bare_lines(text) == [len(text.splitlines())]


@pytest.mark.parametrize("text", LEFT)
def test_a_comment_with_a_subject_is_left(text):
    assert check_comments.bare_lines(text) == []


def test_the_project_has_none(capsys):
    assert check_comments.main() == 0, capsys.readouterr().out
