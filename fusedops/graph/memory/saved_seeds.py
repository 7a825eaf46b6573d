"""Keeps random numbers the same in the forward and the backward pass.

before    seeds = prims.inductor_seeds(1, device)      computed again in the backward graph
after     the same call                                saved for the backward graph

With `activation_memory_budget` below 1, torch computes some results again in the backward pass
instead of saving them. Calls of custom ops are among its candidates, and with them torch 2.13 takes
everything that they need, even the seeds of Inductor's random numbers. A dropout beside one of our
ops would then have another mask in its gradient than in its output.
"""

from __future__ import annotations

import torch
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy


def save_seeds(joint_graph: Graph) -> None:
    """Makes torch save what a random op returns, unless a checkpointed region has said what becomes
    of it. An op with several outputs stays as it is, because a tuple cannot be saved."""
    for node in joint_graph.nodes:
        is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if is_random and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
