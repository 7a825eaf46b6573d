"""Ops work in processes that are forked from one that has used them."""

from __future__ import annotations

import pytest
import torch
from exhaustive import beyond
from processes import run_python

import fusedops

#: The shape of a tensor that two threads divide.
SHAPE = (256, 1024)

PROGRAM = """
import os, sys, torch, fusedops
torch.set_num_threads({threads})
x, w = torch.randn({shape}), torch.ones({shape}[1])

def results():
    long_row = fusedops.softmax(x.view(-1), -1)
    return [fusedops.softmax(x, -1), fusedops.layer_norm(x, w.shape, w, w), long_row]

def same(a, b):  # in numpy: torch.equal would wait in the child for the threads of the parent
    return all((x.numpy() == y.numpy()).all() for x, y in zip(a, b))

before = results()
child = os.fork()
if child == 0:
    os._exit(0 if same(results(), before) else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status if status else not same(results(), before))
"""


@pytest.mark.parametrize("threads", beyond([2], [1, 2, 3]))
def test_a_forked_process_and_then_its_parent_compute_what_the_parent_did(threads):
    """With torch's own softmax the child waits for ever for its parent's threads."""
    program = PROGRAM.format(threads=threads, shape=SHAPE)
    done = run_python("-c", program, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


class _Rows(torch.utils.data.Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return fusedops.softmax(self.x[index], -1)


def test_workers_of_a_data_loader_compute_what_their_parent_does():
    torch.set_num_threads(2)
    x = torch.randn(8, *SHAPE)
    want = fusedops.softmax(x, -1)
    loader = torch.utils.data.DataLoader(
        _Rows(x), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    assert torch.equal(torch.cat(list(loader)), want)
