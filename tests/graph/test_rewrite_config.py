"""fusedops.config: from the environment, patched for a block."""

import dataclasses
import os
import threading

import pytest

import fusedops
from fusedops.config import Config
from fusedops.graph.rules import RULES, STACKS


def test_by_default_what_pays_is_replaced():
    assert Config.from_environment({}) == Config(fuse="profitable")


def test_the_environment_sets_a_field():
    assert Config.from_environment({"FUSEDOPS_FUSE": "never"}).fuse == "never"


def test_an_unknown_value_is_named_with_what_was_wanted():
    wanted = "'sometimes' is unknown, wanted 'profitable' or 'always' or 'never'"
    with pytest.raises(ValueError, match=wanted):
        Config.from_environment({"FUSEDOPS_FUSE": "sometimes"})


def test_a_rule_can_have_a_mode_of_its_own():
    config = Config(fuse="always, layer_norm=never,softmax=profitable")
    modes = [config.fuse_for(rule) for rule in ("rms_norm", "layer_norm", "softmax")]
    assert modes == ["always", "never", "profitable"]


@pytest.mark.parametrize(
    ("fuse", "problem"),
    [
        ("always,layernorm=never", "'layernorm' is unknown, wanted 'masked_softmax' or"),
        ("always,layer_norm=off", "'off' is unknown, wanted 'profitable' or"),
        ("layer_norm=never", "layer_norm= stands first"),
        ("", "'' is unknown"),
    ],
)
def test_a_wrong_mode_of_a_rule_is_named(fuse, problem):
    with pytest.raises(ValueError, match=problem):
        Config(fuse=fuse)


def test_every_rule_is_known_by_its_name():
    names = [rule.name for rule in (*STACKS, *RULES) if rule.name != "leaf"]
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
    with fusedops.config.patch(fuse="never") as inside:
        assert fusedops.config.fuse == inside.fuse == "never"
        with fusedops.config.patch(fuse="always"):
            assert fusedops.config.fuse == "always"
        assert fusedops.config.fuse == "never"
    assert fusedops.config.fuse == before


def test_patch_is_undone_by_an_exception():
    before = fusedops.config.fuse
    with pytest.raises(KeyError), fusedops.config.patch(fuse="never"):
        raise KeyError
    assert fusedops.config.fuse == before


def test_patch_does_not_reach_other_threads():
    seen = []
    with fusedops.config.patch(fuse="never"):
        thread = threading.Thread(target=lambda: seen.append(fusedops.config.fuse))
        thread.start()
        thread.join()
    assert seen == [Config.from_environment(os.environ).fuse]


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="fuze"), fusedops.config.patch(fuze="never"):
        pass
    with pytest.raises(AttributeError, match="no setting 'fuze'; known: fuse"):
        _ = fusedops.config.fuze


def test_settings_cannot_be_assigned():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().fuse = "never"
