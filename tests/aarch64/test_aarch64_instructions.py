"""The compiler's code of the hot kernels for ARM is as good as that for AVX2."""

import re

import pytest

from . import instructions
from .build import NEEDS_TOOLS

pytestmark = [NEEDS_TOOLS, pytest.mark.exhaustive]

CASES = dict(instructions.cases())
#: ARM's instruction for a * b + c overwrites c, so that a constant is copied before.
MOST = 1.5


@pytest.mark.parametrize("isa", instructions.SETS)
@pytest.mark.parametrize("kernel", CASES)
def test_a_vector_takes_at_most_half_as_many_instructions_again_as_with_avx2(kernel, isa):
    counts = instructions.columns("aarch64", isa, CASES[kernel])
    assert instructions.an_element(counts) <= MOST * 2 * instructions.avx2()[kernel]
    code = instructions.hot_code(counts)
    assert [each for each in code if re.match(r"blr?\b", each)] == [], "a call"
    assert [each for each in code if re.search(r"\[(sp|x29)\b", each)] == [], "a spill"
    assert [each for each in code if re.match(r"f\w+\t[sd]\d", each)] == [], "scalar arithmetic"
    assert len(code) > 10
