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
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from . import plan, reach
from .faults import Fault
from .tree import DOES_NOT_BUILD, LIMIT, SAME_LIBRARY, SURVIVED, Tree

WANTED = 0.95
#: Files of tests that run first, as to collect all of a layer takes longer than most faults last.
CLOSEST = 6


class Mutant(NamedTuple):
    """A fault by its place in the queue of its stratum, and what noticed it."""

    name: str
    fault: Fault
    verdict: str


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
        try_out(Tree(0), args.only, queues[stratum][int(index)], limit="unlimited")
        return 0
    reach.measured()  # before the workers want it
    trees = [Tree(number) for number in range(args.workers)]
    return report(run(queues, counts, trees), trees[0])


def groups(fault: Fault) -> list[list[str]]:
    """The tests that may notice a fault, the likeliest first: those that run its line, where that
    is known, else the files of its layer."""
    files = plan.tests_of(fault.path)
    by_name = [files[:CLOSEST], files[CLOSEST:]]
    if not fault.path.endswith(".py"):
        return by_name
    names = reach.names_at(fault, reach.measured())
    return [reach.tests_at(names, files), *(by_name if "" in names else [])]


def try_out(tree: Tree, name: str, fault: Fault, limit: int | str = LIMIT) -> Mutant:
    """Tries a fault out and prints a line about it."""
    began = time.monotonic()
    verdict = tree.try_out(fault, groups(fault), limit)
    print(f"{name} {fault}: {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    return Mutant(name, fault, verdict)


def run(queues: dict[str, list[Fault]], counts: dict[str, int], trees: list[Tree]) -> list[Mutant]:
    """Tries faults out. One that does not build, or changes no library, is replaced by the next in
    its queue."""
    queued = {stratum: iter(enumerate(faults)) for stratum, faults in queues.items()}
    idle = list(trees)

    def one(stratum: str) -> Mutant:
        tree, mutant = idle.pop(), None
        while mutant is None or mutant.verdict in (DOES_NOT_BUILD, SAME_LIBRARY):
            index, fault = next(queued[stratum])
            mutant = try_out(tree, f"{stratum}:{index}", fault)
        idle.append(tree)
        return mutant

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(one, [name for name, count in counts.items() for _ in range(count)]))


def report(mutants: list[Mutant], tree: Tree) -> int:
    """Prints survivors and shares, and returns the exit status."""
    print("\nSurvivors:")
    for mutant in mutants:
        if mutant.verdict == SURVIVED:
            print(f"  {mutant.name} {mutant.fault}")
    for stratum in plan.STRATA:
        verdicts = [m.verdict for m in mutants if m.name.startswith(f"{stratum}:")]
        caught = len(verdicts) - verdicts.count(SURVIVED)
        print(f"{stratum:10} {caught:3} of {len(verdicts):3} caught")
    share = sum(mutant.verdict != SURVIVED for mutant in mutants) / len(mutants)
    print(f"{share:.1%} of {len(mutants)} caught, {WANTED:.0%} wanted", flush=True)
    wrong = tree.failing({mutant.verdict for mutant in mutants if "::" in mutant.verdict})
    print(*(f"{test} fails without a fault too" for test in wrong), sep="\n")
    return 2 if wrong else int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())
