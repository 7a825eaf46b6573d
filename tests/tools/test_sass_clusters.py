"""What the machine code of kernels of clusters may not contain; no GPU is needed."""

import collections

import pytest
from exhaustive import beyond
from sass import chips, code, toolchain

#: Fences wait until all stores of a thread are in memory: 1 us or more where a row takes 4.
FENCES = {"MEMBAR", "ERRBAR", "CGAERRBAR"}
#: Each drops the L1 cache. The wait before the first store to another block has one.
CACHE_DROPS = 1

#: Clusters exist from sm_90 on.
ARCHITECTURES = beyond(["90"], [arch for arch in chips.CHIPS if int(arch) >= 90])


def bodies_of(arch):
    """The instructions of the kernels of clusters by name."""
    codes = toolchain.codes_of([arch])[arch]
    names = toolchain.demangle(list(codes))
    return {names[key]: found.body for key, found in codes.items() if "_cluster" in names[key]}


def fences_in(body):
    """The instructions that a kernel of clusters may not have."""
    count = collections.Counter(instruction.name for instruction in body)
    drops = ["CCTL"] if count["CCTL"] > CACHE_DROPS else []
    return [*sorted(FENCES & count.keys()), *drops]


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_kernel_of_clusters_has_a_fence(arch):
    bodies = bodies_of(arch)
    assert bodies
    assert {name: found for name, body in bodies.items() if (found := fences_in(body))} == {}
    # Values are sent by st.async, and nothing is read from another block.
    names = {name: {instruction.name for instruction in body} for name, body in bodies.items()}
    assert all("STAS" in of_kernel for of_kernel in names.values())


SASS = """
        Function : a_barrier_that_orders_memory
        /*0000*/                   MEMBAR.ALL.GPU ;
        /*0010*/                   ERRBAR ;
        /*0020*/                   CGAERRBAR ;
        /*0030*/                   UCGABAR_ARV ;
        /*0040*/                   UCGABAR_WAIT ;
        /*0050*/                   CCTL.IVALL ;
        /*0060*/                   EXIT ;
        Function : two_drops
        /*0000*/                   CCTL.IVALL ;
        /*0010*/              @!P0 CCTL.IVALL ;
        /*0020*/                   EXIT ;
        Function : a_relaxed_arrival
        /*0000*/                   UCGABAR_ARV ;
        /*0010*/                   UCGABAR_WAIT ;
        /*0020*/                   CCTL.IVALL ;
        /*0030*/                   STAS [R6.64], R13 ;
        /*0040*/                   EXIT ;
"""


def test_fences_and_more_than_one_drop_of_the_cache_are_found():
    barrier, drops, relaxed = code.parse_sass(SASS).values()
    assert fences_in(barrier) == ["CGAERRBAR", "ERRBAR", "MEMBAR"]
    assert fences_in(drops) == ["CCTL"]
    assert fences_in(relaxed) == []
