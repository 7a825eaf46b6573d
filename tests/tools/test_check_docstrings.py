"""tools/check_docstrings.py, a part of `make lint`."""

import check_docstrings
import pytest

import fusedops

FUNCTION = '''def scale(input: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """A multiple of a tensor.

    Args:
        input: any shape; float32.
        factor: what it is multiplied by.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: a factor that is NaN.

    Source: torch.mul.
    """
    if math.isnan(factor):
        raise ValueError("factor is NaN")
    return input * factor
'''
CLASS = '''class Scale(nn.Module):
    """A multiple of a tensor.

    Args:
        factor: what it is multiplied by.

    Shape:
        any, and the result's is the same.

    Raises:
        ValueError: a factor that is NaN.

    Source: torch.mul.
    """

    def __init__(self, factor: float) -> None:
        if math.isnan(factor):
            raise ValueError("factor is NaN")
'''
LONG = "".join(f"    x{i} = {i}\n" for i in range(5))
METHOD = "def run(self):\n" + LONG.replace("    ", "        ")


def what_is_missing(text, is_api=True):
    return [what for _, what in check_docstrings.problems_of(text, is_api)]


@pytest.mark.parametrize("text", [FUNCTION, CLASS])
def test_a_complete_docstring_is_left(text):
    assert what_is_missing(text) == []


@pytest.mark.parametrize("section", ["Args", "Returns", "Shape", "Raises", "Source"])
@pytest.mark.parametrize(("name", "text"), [("scale", FUNCTION), ("Scale", CLASS)])
def test_a_section_that_is_lacking_is_found(name, text, section):
    lacking = text.replace(f"{section}:", f"{section} are these")
    assert (f"{name}: no {section}: section" in what_is_missing(lacking)) == (lacking != text)


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("        A tensor of the same shape.\n", "", "no Returns: section"),
        ("        factor: what it is multiplied by.\n", "", "Args: says nothing of factor"),
        ("factor: what it is multiplied by.", "factor:", "Args: says nothing of factor"),
        ("        factor: what", "        factors: what", "Args: there is no parameter factors"),
        ("any shape; float32.", "float32.", "Args: does not tell shape and dtype of input"),
        ("any shape; float32.", "any shape.", "Args: does not tell shape and dtype of input"),
        ("ValueError: a factor", "TypeError: a factor", "Raises: does not name ValueError"),
        # A reference tells the form of a tensor, and one entry may be for several parameters.
        ("any shape; float32.", "as in :func:`other`.", None),
        (
            "input: any shape; float32.\n        factor: what",
            "input, factor: any shape, bool",
            None,
        ),
    ],
)
def test_what_a_section_leaves_out_is_found(old, new, missing):
    assert old in FUNCTION
    found = what_is_missing(FUNCTION.replace(old, new, 1))
    assert f"scale: {missing}" in found if missing else not found


def test_a_function_without_arguments_and_result_needs_a_source_alone():
    docstring = '    """From now on.\n\n    Source: torch.\n    """\n'
    assert what_is_missing(f"def enable() -> None:\n{docstring}") == []


def test_the_line_is_that_of_the_function():
    text = "\n\n" + FUNCTION.replace("Source:", "From")
    assert check_docstrings.problems_of(text, True) == [(3, "scale: no Source: section")]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (f'def scale(input):\n    """A multiple."""\n{LONG}', []),
        (f"def scale():\n{LONG}", ["scale has no docstring"]),
        (f"class Scale:\n{LONG}", ["Scale has no docstring"]),
        (f"class Scale:\n    {METHOD}", ["Scale has no docstring", "Scale.run has no docstring"]),
        (f"class Scale(Base):\n    {METHOD}", ["Scale has no docstring"]),
        (f"def _scale():\n{LONG}", []),
        ("def scale(x):\n    return 2 * x\n", []),
    ],
)
def test_outside_of_the_api_all_but_short_bodies_have_a_docstring(text, missing):
    assert what_is_missing(text, is_api=False) == missing


def test_all_names_stand_for_the_api():
    text = f'__all__ = ["scale"]\n\ndef scale():\n{LONG}\ndef other():\n    return 1\n'
    assert what_is_missing(text) == ["scale: has no docstring"]


def test_every_function_of_the_package_is_in_a_file_of_the_api():
    found = [getattr(fusedops, name) for name in fusedops.__all__]
    modules = {item.__module__ for item in found if callable(item)}
    files = {name.removeprefix("fusedops.").replace(".", "/") + ".py" for name in modules}
    assert files <= set(check_docstrings.API)


def test_the_project_leaves_nothing_out(capsys):
    assert check_docstrings.main() == 0, capsys.readouterr().out
