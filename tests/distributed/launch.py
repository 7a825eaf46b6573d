"""Runs claims in several processes: `python -m tests.distributed.launch MODULE RANK WORLD FOLDER` is
one of them.

A claim is a function of `MODULE` whose name begins with `claim_`; every process runs all of them, in
the same order. A process that fails writes why and leaves at once, so that the others' next
collective fails too in place of waiting for it.
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
#: How long one collective may take, and all claims of a module, in seconds.
COLLECTIVE_LIMIT, LIMIT = 30, 150


def start(module, world, folder):
    """The processes, started."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    own = [sys.executable, "-m", "tests.distributed.launch", module]
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


def failures(module, world, folder, limit=LIMIT):
    """What the claims of a module found wrong; empty if nothing."""
    processes = start(module, world, folder)
    try:
        for process in processes:
            process.wait(limit)
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
    codes = [process.wait() for process in processes]
    reports = [path.read_text() for path in sorted(Path(folder).glob("failure-*"))]
    outputs = [path.read_text() for path in sorted(Path(folder).glob("output-*"))]
    return "\n".join(reports or outputs) if any(codes) else ""


def join(rank, world, folder):
    """Joins the group; nothing waits longer than the limit for a rank that has died."""
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


def main(module, rank, world, folder):
    join(int(rank), int(world), folder)
    faulthandler.dump_traceback_later(LIMIT - 10)
    claims = importlib.import_module(module)
    name = ""
    try:
        for name in [name for name in dir(claims) if name.startswith("claim_")]:
            torch.manual_seed(0)
            begin = time.monotonic()
            getattr(claims, name)()
            print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
        dist.barrier()
    except BaseException:
        report = f"--- {name} in process {rank} of {world}\n{traceback.format_exc()}"
        Path(folder, f"failure-{rank}").write_text(report)
        leave(1)
    leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
