"""`python -m tests.mutants --count 60 --seed 1`: do the tests notice a small fault?

Each mutant is a copy of this checkout with one fault, drawn as `plan.py` says. What the fault
affects is built again, and the tests of that layer run until one fails. Exit status: 1 where fewer
than 95 % are caught, 2 where a test that caught one fails without the fault too.

Tools that plant faults (mutmut, cosmic-ray; Mull, Dextool) know one language each, bring a runner
of their own, and cannot rebuild the emulator's libraries, so this is a program of our own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from . import plan
from .faults import Fault
from .tree import DOES_NOT_BUILD, SURVIVED, Tree

WANTED = 0.95
Queues = dict[str, list[Fault]]


def main() -> int:
    """Draws, runs and reports mutants."""
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tests.mutants", description=__doc__, formatter_class=about)
    parser.add_argument("--count", type=int, default=60, help="how many mutants are run")
    parser.add_argument("--seed", type=int, default=1, help="the same number draws the same faults")
    parser.add_argument("--workers", type=int, default=2, help="how many are run at a time")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--only", metavar="NAME", help="run one, like cuda:3, without a time limit")
    args = parser.parse_args()
    queues = plan.queues(args.seed, plan.sources())
    counts = plan.counts(args.count, args.seed)
    if args.list:
        for stratum, count in counts.items():
            for index, fault in enumerate(queues[stratum][:count]):
                print(f"{stratum}:{index} {fault}")
        return 0
    if args.only:
        stratum, _, index = args.only.partition(":")
        print(_verdict(Tree(0), args.only, queues[stratum][int(index)], limit=None))
        return 0
    trees = [Tree(number) for number in range(args.workers)]
    return report(list(run(queues, counts, trees)), trees[0])


def _verdict(tree: Tree, name: str, fault: Fault, **limit: float | None) -> str:
    """SURVIVED, DOES_NOT_BUILD, or the test that noticed the fault; it is printed too."""
    began = time.monotonic()
    verdict = tree.try_out(fault, plan.tests_of(fault.path), **limit)
    print(f"{name} {fault}: {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    return verdict


def run(
    queues: Queues, counts: dict[str, int], trees: list[Tree]
) -> Iterator[tuple[str, Fault, str]]:
    """The names, faults and verdicts. What does not build is replaced by the next in its queue."""
    queued = {stratum: iter(enumerate(faults)) for stratum, faults in queues.items()}
    idle = list(trees)

    def one(stratum: str) -> tuple[str, Fault, str]:
        tree = idle.pop()
        try:
            while True:
                index, fault = next(queued[stratum])
                name = f"{stratum}:{index}"
                verdict = _verdict(tree, name, fault)
                if verdict != DOES_NOT_BUILD:
                    return name, fault, verdict
        finally:
            idle.append(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(one, [name for name, count in counts.items() for _ in range(count)])


def report(mutants: list[tuple[str, Fault, str]], tree: Tree) -> int:
    """Prints survivors and shares, and returns the exit status."""
    survivors = [(name, fault) for name, fault, verdict in mutants if verdict == SURVIVED]
    print("\nSurvivors:", *(f"{name} {fault}" for name, fault in survivors), sep="\n  ")
    for stratum in plan.STRATA:
        every, left = (
            sum(mutant[0].startswith(f"{stratum}:") for mutant in some)
            for some in (mutants, survivors)
        )
        print(f"{stratum:10} {every - left:3} of {every:3} caught")
    share = 1 - len(survivors) / len(mutants)
    print(f"{share:.1%} of {len(mutants)} caught, {WANTED:.0%} wanted", flush=True)
    wrong = tree.failing({verdict for *_, verdict in mutants if "::" in verdict})
    print(*(f"{test} fails without a fault too" for test in wrong), sep="\n")
    return 2 if wrong else int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())
