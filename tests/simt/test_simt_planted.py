"""The emulator and the sanitizers find one bug of each class, planted into small kernels.

What sanitizers find runs with ``--exhaustive``, as the kernels under them do.
"""

from __future__ import annotations

import re

import pytest

from .emulator import build
from .emulator.build import PLANTED
from .sanitized import run_sanitizer_command

SCHEDULES = ["fifo", "lifo", "random"]

RACE = "ThreadSanitizer: data race"
WRONG = "wrong result"

#: For each bug a build that finds it, the schedules in which it does, and its message.
FOUND = {
    "GlobalOverrun": [("asan", SCHEDULES, "heap-buffer-overflow")],
    "SharedOverrun": [("asan", SCHEDULES, "index 4 out of bounds")],
    "SharedOverrunByPointer": [("asan", SCHEDULES, "use-after-poison")],
    "Misaligned": [("asan", SCHEDULES, "requires 16 byte alignment")],
    "MisalignedShared": [("asan", SCHEDULES, "requires 32 byte alignment")],
    # max() ignores the NaNs that poison of 0xFF makes; 0x7F makes large values.
    "Uninitialised": [("plain", ["lifo", "random"], WRONG)],
    "MissingReuseBarrier": [("tsan", SCHEDULES, RACE), ("plain", ["lifo"], WRONG)],
    "MissingTreeBarrier": [("tsan", SCHEDULES, RACE), ("plain", SCHEDULES, WRONG)],
    "MissingSyncwarp": [("tsan", SCHEDULES, RACE)],
    "EarlyExit": [
        ("plain", ["fifo"], "deadlock: 100 threads"),
        ("plain", ["lifo", "random"], "names lanes that are not there"),
    ],
    "DivergentBarrier": [("plain", SCHEDULES, "divergent __syncthreads")],
    "HalfWarpShuffle": [("plain", SCHEDULES, "divergent warp collective")],
    "ShuffleOutsideMask": [("plain", SCHEDULES, "which mask 0000ffff leaves out")],
    "PlainAddAcrossBlocks": [("tsan", SCHEDULES, RACE)],
    "RelaxedArrival": [("tsan", SCHEDULES, RACE)],
    "LoneClusterWait": [("plain", SCHEDULES, "wait at a cluster barrier without an arrival")],
    "SecondArrival": [("plain", SCHEDULES, "a second arrival at a cluster barrier")],
    "DivergentArrival": [("plain", SCHEDULES, "divergent arrival at the cluster barrier")],
    "MissingClusterWait": [("plain", SCHEDULES, "may not have started")],
    "StuckPhase": [("tsan", ["lifo", "random"], RACE), ("plain", SCHEDULES, "may have exited")],
    "LostBytes": [("plain", SCHEDULES, "deadlock")],
    "MailSentEarly": [("tsan", SCHEDULES, RACE)],
    "EarlyClusterExit": [("plain", SCHEDULES, "may have exited|on its way")],
}


def run_planted(build_name: str, bug: str, schedule: str) -> tuple[int, str]:
    program = build.planted_program(build_name)
    done = run_sanitizer_command([str(program), bug, schedule])
    return done.returncode, done.stderr


def marks_of(build_name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if build_name == "plain" else (pytest.mark.exhaustive,)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "build_name",
    [pytest.param(name, marks=marks_of(name)) for name in build.SANITIZERS],
)
def test_kernels_without_a_bug_run_clean(build_name, schedule):
    assert run_planted(build_name, "None", schedule) == (0, "")


@pytest.mark.parametrize(
    "bug, build_name, schedules, report",
    [
        pytest.param(bug, name, *rest, id=f"{bug}-{name}", marks=marks_of(name))
        for bug, finders in FOUND.items()
        for name, *rest in finders
    ],
)
def test_a_planted_bug_is_found(bug, build_name, schedules, report):
    for schedule in schedules:
        status, message = run_planted(build_name, bug, schedule)
        assert status != 0, schedule
        assert re.search(report, message), (schedule, message)


def test_every_bug_that_can_be_planted_is_looked_for():
    listed = re.findall(r"^  BUG\((\w+)\)", (PLANTED / "bug.h").read_text(), re.M)
    assert set(listed) == {"None", *FOUND}
