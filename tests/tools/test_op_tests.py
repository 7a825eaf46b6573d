"""The op tests are those that run with several numbers of threads."""

from pathlib import Path

import pytest
import threads


def test_every_module_of_op_tests_exists():
    there = {path.stem for path in (Path(__file__).parents[1] / "ops").glob("test_*.py")}
    assert there.issuperset(threads.OP_TESTS)


@pytest.mark.parametrize("count", threads.COUNTS)
def test_a_thread_count_is_some_op_tests_turn(count):
    turns = [threads.turn_of(f"test_softmax_values.py::test[{number}]") for number in range(30)]
    assert turns.count(count) >= 5
