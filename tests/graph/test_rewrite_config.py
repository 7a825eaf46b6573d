"""fusedops.config: read from the environment, and patched for a block. What it refuses stands in
bad_input/test_bad_compiler_arguments.py."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from exhaustive import beyond
from processes import run_python

import fusedops
from fusedops.config import Config
from fusedops.graph.rules import REST, RULES, STACKS


def test_by_default_sites_that_pay_are_replaced():
    assert Config.from_environment({}) == Config(fuse="profitable")


def test_a_rule_can_have_a_mode_of_its_own():
    fuse = "always, layer_norm=never,softmax=profitable"
    config = Config.from_environment({"FUSEDOPS_FUSE": fuse})
    modes = [config.fuse_for(rule) for rule in ("rms_norm", "layer_norm", "softmax")]
    assert modes == ["always", "never", "profitable"]


def test_every_rule_is_known_by_its_name():
    names = [rule.name for rule in (*STACKS, *RULES, *REST) if rule.name != "leaf"]
    assert sorted(fusedops.config.RULES) == sorted([*names, "expand"])


def test_an_unknown_name_warns():
    with pytest.warns(UserWarning, match="nothing reads FUSEDOPS_FUZE; known names: .*FUSE"):
        Config.from_environment({"FUSEDOPS_FUZE": "never"})


@pytest.mark.filterwarnings("error")
def test_names_of_the_build_and_of_others_do_not_warn():
    names = {"FUSEDOPS_BUILD_CUDA": "0", "FUSEDOPS_CPU_ISA": "avx2", "TORCH_LOGS": "+dynamo"}
    assert Config.from_environment(names) == Config()


def test_patch_holds_for_its_block_and_nests():
    before = fusedops.config.fuse
    with pytest.raises(KeyError), fusedops.config.patch(fuse="never") as inside:
        assert fusedops.config.fuse == inside.fuse == "never"
        with fusedops.config.patch(fuse="always"):
            assert fusedops.config.fuse == "always"
            fusedops.config.fuse = "profitable"
            assert fusedops.config.fuse == "profitable"
        assert fusedops.config.fuse == "never"
        raise KeyError  # which a patch is undone by too
    assert fusedops.config.fuse == before


def _in_another_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: fusedops.config.fuse).result()


def test_patch_does_not_reach_other_threads_and_an_assignment_does(monkeypatch):
    with fusedops.config.patch(fuse="never"):
        assert _in_another_thread() == Config.from_environment(os.environ).fuse
    monkeypatch.setattr(fusedops.config, "fuse", "never")
    assert _in_another_thread() == "never" and fusedops.config.active() == Config("never")


def test_a_refused_setting_changes_nothing():
    before = fusedops.config.fuse
    for changes in ({"fuse": 3}, {"fuse": "nonsense"}, {"fuze": "never"}):
        with pytest.raises((TypeError, ValueError)), fusedops.config.patch(**changes):
            pass
    assert fusedops.config.fuse == before


IMPORTED_TWICE = """
for _ in range(2):
    try:
        import fusedops
    except ValueError as error:
        print(error)
import sys
print([name for name in sys.modules if name.startswith("fusedops")])
"""


def _run(*argv, cwd=None):
    return run_python(*argv, cwd=cwd, FUSEDOPS_FUSE="nonsense")


def test_a_wrong_variable_is_one_error_at_the_first_import_and_every_later_one():
    first, second, modules = _run("-c", IMPORTED_TWICE).stdout.splitlines()
    assert first == second
    assert "fuse is 'nonsense'" in first and "FUSEDOPS_FUSE" in first and modules == "[]"


def test_a_program_that_is_run_as_a_module_gets_the_same_error(tmp_path):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__init__.py").write_text("import fusedops\n")
    (tmp_path / "program" / "__main__.py").write_text("print('ran')\n")
    finished = _run("-m", "program", cwd=tmp_path)
    assert finished.returncode == 1 and "ran" not in finished.stdout
    assert "ValueError: fusedops.config: fuse is 'nonsense'" in finished.stderr


@pytest.mark.parametrize(
    "argv",
    beyond(
        [("-Wm", "-m", "fusedops")],
        [("-m", "fusedops"), ("-mfusedops",), ("-Wm", "-m", "fusedops")],
    ),
)
def test_env_still_runs_and_says_what_is_wrong(argv):
    finished = _run(*argv, "env")
    assert finished.returncode == 1 and "fix: unset the variable" in finished.stdout


def test_a_name_that_a_failed_import_left_out_says_why(monkeypatch):
    monkeypatch.setattr(fusedops, "_failure", ValueError("fuse is 'nonsense'"))
    monkeypatch.delattr(fusedops, "softmax")
    with pytest.raises(ImportError, match="could not be imported: fuse is 'nonsense'"):
        _ = fusedops.softmax


def test_a_wrong_or_unknown_setting_is_refused():
    before = fusedops.config.fuse
    with pytest.raises(ValueError, match="fuse is 'alwais': 'alwais' is unknown, wanted"):
        fusedops.config.fuse = "alwais"
    with pytest.raises(AttributeError, match="no setting 'fuze'; known: fuse"):
        fusedops.config.fuze = "always"
    with pytest.raises(AttributeError, match="no setting 'fuze'; known: fuse"):
        _ = fusedops.config.fuze
    assert fusedops.config.fuse == before and not hasattr(fusedops.config, "fuze")


def test_a_set_of_settings_cannot_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().fuse = "never"
