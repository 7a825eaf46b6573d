"""Random programs of the calls that the rules know behave as before once they are rewritten, in
values, gradients, strides, memory, and in what they write into their inputs.

`random_programs.py` says what a program is. A failure prints its source.
"""

import fuzzing
import pytest
import random_programs as pieces
import torch
from agreement import assert_alike, outcome
from functorch.compile import make_boxed_func
from hypothesis import event, given, note, settings
from torch._dynamo.backends.common import aot_autograd

from fusedops.graph import rewrite_graph, rewrite_module

EVERYTHING = pieces.CHAINS * 3 + pieces.SITES * 2 + pieces.VIEWS + pieces.WRITES
GRAD_MODES = [context for context in pieces.CONTEXTS if "autocast" not in context]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture(scope="module", autouse=True)
def guards_are_not_timed():
    """Dynamo times the guards of a graph on a flushed cache: a third of a small capture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
        yield


def _check(program, ours, theirs, dynamic=None):
    """The program behaves under the backend `ours` as in eager, wherever it does under `theirs`:
    some differences are torch's own."""
    function = program.function()
    note(function.source)
    inputs, nearby = program.inputs(), program.inputs(nearby=True)
    with torch.enable_grad():
        eager, eager_nearby = (outcome(function, given) for given in (inputs, nearby))

        def differs(backend):
            torch._dynamo.reset()
            try:
                found = outcome(torch.compile(function, backend=backend, dynamic=dynamic), inputs)
                assert_alike(found, eager)
                _assert_close(found, eager, eager_nearby, program.precision)
            except Exception as error:
                return error

        error = differs(ours)
        if error is not None and differs(theirs) is None:
            raise error
        event("torch itself differs from eager" if error else "as in eager")


def _assert_close(found, eager, nearby, precision):
    """The values are as close as eager's are to those for inputs that differ by a rounding."""
    for actual, expected, other in zip(found.values, eager.values, nearby.values, strict=True):
        if not expected.is_floating_point():
            assert torch.equal(actual, expected)
            continue
        if precision == pieces.EXACT:
            assert torch.equal(actual.isnan(), expected.isnan())
        known = expected.isfinite() & other.isfinite()
        actual, expected, other = (tensor[known].double() for tensor in (actual, expected, other))
        scale, spread = (t.abs().sum() for t in (expected, other - expected))
        allowed = 16 * (precision * (1 + scale) + spread)
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=float(allowed))


def _rewritten(graph_module, example_inputs):
    """A backend: rewritten, and run as it is. A second rewrite finds nothing to do."""
    rewrite_module(graph_module)
    assert not rewrite_graph(graph_module.graph).replaced
    return graph_module


@pytest.mark.slow("a hundred programs, each captured and run in eager mode")
@settings(max_examples=fuzzing.examples(500))
@given(pieces.programs(EVERYTHING + pieces.SWITCHES, GRAD_MODES))
def test_a_random_program_in_all_grad_modes_behaves_as_before(program):
    _check(program, _rewritten, "eager")


@settings(max_examples=fuzzing.examples(250))
@given(pieces.programs(EVERYTHING + pieces.CASTS * 3, pieces.CONTEXTS, DTYPES))
def test_a_random_program_of_many_dtypes_in_all_modes_behaves_as_before(program):
    _check(program, _rewritten, "eager")


@settings(max_examples=fuzzing.examples(150))
@given(pieces.programs(EVERYTHING, GRAD_MODES[:2]))
def test_a_random_program_of_dynamic_shapes_behaves_as_before(program):
    _check(program, _rewritten, "eager", dynamic=True)


# AOTAutograd makes writes into new tensors, as Inductor has it do.
_aot = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))


def _rewritten_then_aot(graph_module, example_inputs):
    return _aot(_rewritten(graph_module, example_inputs), example_inputs)


@settings(max_examples=fuzzing.examples(120))
@given(pieces.programs(EVERYTHING, GRAD_MODES[:2]))
def test_a_random_program_whose_writes_become_new_tensors_behaves_as_before(program):
    _check(program, _rewritten_then_aot, _aot)


@settings(max_examples=fuzzing.examples(8))
@given(pieces.programs(EVERYTHING, GRAD_MODES[:2], longest=20))
def test_a_random_program_compiled_by_inductor_behaves_as_before(program):
    _check(program, "fusedops", "inductor")
