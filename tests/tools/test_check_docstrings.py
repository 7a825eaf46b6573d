"""tools/check_docstrings.py, a part of `make lint`."""

import sys
from pathlib import Path

import pytest

import fusedops

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import check_docstrings

FUNCTION = '''"""A module."""

def scale(input: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
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
CLASS = '''"""A module."""

class Scale(nn.Module):
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


@pytest.mark.parametrize("section", ["Args", "Returns", "Raises", "Source"])
def test_a_section_that_a_function_lacks_is_found(section):
    text = FUNCTION.replace(f"{section}:", f"{section} are these")
    assert f"scale: no {section}: section" in what_is_missing(text)


@pytest.mark.parametrize("section", ["Args", "Shape", "Raises", "Source"])
def test_a_section_that_a_class_lacks_is_found(section):
    text = CLASS.replace(f"{section}:", f"{section} are these")
    assert f"Scale: no {section}: section" in what_is_missing(text)


def test_a_section_without_text_is_none():
    text = FUNCTION.replace("        A tensor of the same shape.\n", "")
    assert what_is_missing(text) == ["scale: no Returns: section"]


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("        factor: what it is multiplied by.\n", "", "Args: says nothing of factor"),
        ("factor: what it is multiplied by.", "factor:", "Args: says nothing of factor"),
        ("        factor: what", "        factors: what", "Args: there is no parameter factors"),
        ("any shape; float32.", "float32.", "Args: does not tell shape and dtype of input"),
        ("any shape; float32.", "any shape.", "Args: does not tell shape and dtype of input"),
        ("ValueError: a factor", "TypeError: a factor", "Raises: does not name ValueError"),
    ],
)
def test_what_a_section_leaves_out_is_found(old, new, missing):
    assert old in FUNCTION
    assert f"scale: {missing}" in what_is_missing(FUNCTION.replace(old, new, 1))


def test_a_reference_tells_the_form_of_a_tensor():
    text = FUNCTION.replace("any shape; float32.", "as in :func:`other`.")
    assert what_is_missing(text) == []


def test_one_entry_may_be_for_several_parameters():
    text = FUNCTION.replace("        factor: what it is multiplied by.\n", "")
    text = text.replace("input: any shape", "input, factor: any shape")
    assert what_is_missing(text) == []


def test_a_function_without_arguments_and_result_needs_a_source_alone():
    docstring = '    """From now on.\n\n    Source: torch.\n    """\n'
    assert what_is_missing(f'"""A module."""\n\ndef enable() -> None:\n{docstring}') == []


def test_the_line_is_that_of_the_function():
    text = FUNCTION.replace("Source:", "From")
    assert check_docstrings.problems_of(text, True) == [(3, "scale: no Source: section")]


def test_outside_of_the_api_a_docstring_is_enough():
    text = f'"""A module."""\n\ndef scale(input):\n    """A multiple."""\n{LONG}'
    assert what_is_missing(text, is_api=False) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (f"def scale():\n{LONG}", ["scale has no docstring"]),
        (f"class Scale:\n{LONG}", ["Scale has no docstring"]),
        (f"class Scale:\n    {METHOD}", ["Scale has no docstring", "Scale.run has no docstring"]),
        (f"class Scale(Base):\n    {METHOD}", ["Scale has no docstring"]),
        (f"def _scale():\n{LONG}", []),
        ("def scale(x):\n    return 2 * x\n", []),
    ],
)
def test_outside_of_the_api_all_but_short_bodies_have_a_docstring(text, missing):
    assert what_is_missing(f'"""A module."""\n\n{text}', is_api=False) == missing


def test_a_module_without_a_docstring_is_found():
    assert what_is_missing("x = 1\n", is_api=False) == ["the module has no docstring"]


def test_all_names_stand_for_the_api():
    text = f'"""."""\n\n__all__ = ["scale"]\n\ndef scale():\n{LONG}\ndef other():\n    return 1\n'
    assert what_is_missing(text) == ["scale: has no docstring"]


def test_every_function_of_the_package_is_in_a_file_of_the_api():
    found = [getattr(fusedops, name) for name in fusedops.__all__]
    modules = {item.__module__ for item in found if callable(item)}
    files = {name.removeprefix("fusedops.").replace(".", "/") + ".py" for name in modules}
    assert files <= set(check_docstrings.API)


def test_the_project_leaves_nothing_out(capsys):
    assert check_docstrings.main() == 0, capsys.readouterr().out
