"""FUSEDOPS_* with values that make no sense: the import names them, or the call that reads them."""

from processes import run_python


def test_only_variables_that_are_read_or_unknown_are_named():
    code = "import fusedops, torch; fusedops.softmax(torch.ones(2), 0)"
    finished = run_python(
        "-c",
        code,
        timeout=120,
        FUSEDOPS_CPU_ISA="sse9",
        FUSEDOPS_FUZE="always",
        FUSEDOPS_BUILD_CUDA="maybe",
    )
    assert finished.returncode == 1, finished.stderr
    error = finished.stderr
    assert "FUSEDOPS_CPU_ISA is 'sse9', wanted avx512_bf16, avx512, avx2 or default" in error
    assert "nothing reads FUSEDOPS_FUZE" in error
    assert "nothing reads FUSEDOPS_BUILD_CUDA" not in error
