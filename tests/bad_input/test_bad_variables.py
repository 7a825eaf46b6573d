"""FUSEDOPS_* with values that make no sense: the import names them, or the call that reads them."""

from processes import run_python


def error_of(code, **variables):
    """What Python says of code that fails where the variables are set."""
    finished = run_python("-c", code, timeout=120, **variables)
    assert finished.returncode == 1, finished.stderr
    return finished.stderr


def test_the_import_names_a_setting_that_makes_no_sense():
    assert "fuse is 'sometimes'" in error_of("import fusedops", FUSEDOPS_FUSE="sometimes")


def test_only_variables_that_are_read_or_unknown_are_named():
    error = error_of(
        "import fusedops, torch; fusedops.softmax(torch.ones(2), 0)",
        FUSEDOPS_CPU_ISA="sse9",
        FUSEDOPS_FUZE="always",
        FUSEDOPS_BUILD_CUDA="maybe",
    )
    assert "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512_bf16, avx512, avx2 or default" in error
    assert "nothing reads FUSEDOPS_FUZE" in error
    assert "nothing reads FUSEDOPS_BUILD_CUDA" not in error
