"""Runs claims in several processes; `python -m distributed.launch MODULES RANK WORLD FOLDER`
is one of them.

A claim is a function of one of the modules whose name begins with `claim_`; every process runs all
of them, in the same order. A process that fails writes why and leaves at once, so that the others'
next collective fails too in place of waiting for it.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
#: How long one collective may take, and all claims of a launch, in seconds.
COLLECTIVE_LIMIT, LIMIT = 60, 300


def start(modules, world, folder):
    """The processes, started."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        "PYTHONWARNINGS": "ignore",
    }
    own = [sys.executable, "-m", "distributed.launch", ",".join(modules)]
    return [
        subprocess.Popen(
            [*own, str(rank), str(world), str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=Path(folder, f"output-{rank}").open("w"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]


def failures(modules, world, folder, limit=LIMIT):
    """What the claims of some modules found wrong; empty if nothing. Starting a process takes
    seconds, so that one runs many claims."""
    processes = start(modules, world, folder)
    end = time.monotonic() + limit
    try:
        for process in processes:
            process.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
    codes = [process.wait() for process in processes]
    reports = [path.read_text() for path in sorted(Path(folder).glob("failure-*"))]
    outputs = [path.read_text() for path in sorted(Path(folder).glob("output-*"))]
    return "\n".join(reports or outputs or ["nothing"]) if any(codes) else ""


def join(rank, world, folder):
    """Joins the group; nothing waits longer than the limit for a process that has died."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=COLLECTIVE_LIMIT),
    )


def leave(code):
    """Without destructors: torch's reducer can hold the interpreter lock while it joins Gloo's
    thread, which may need that lock, and then neither goes on."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def claims_of(modules):
    for name in modules.split(","):
        claims = vars(importlib.import_module(f"distributed.claims_{name}"))
        yield from (value for key, value in sorted(claims.items()) if key.startswith("claim_"))


def main(modules, rank, world, folder):
    faulthandler.dump_traceback_later(LIMIT - 10)
    claim = join
    try:
        join(int(rank), int(world), folder)
        for claim in claims_of(modules):
            begin = time.monotonic()
            torch.manual_seed(0)
            claim()
            print(f"{claim.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
        dist.barrier()
    except BaseException:
        report = f"--- {claim.__name__} in process {rank} of {world}\n{traceback.format_exc()}"
        Path(folder, f"failure-{rank}").write_text(report)
        leave(1)
    leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
