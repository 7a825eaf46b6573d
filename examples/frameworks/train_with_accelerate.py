"""A training loop with Accelerate in bfloat16, with softmaxes, norms and the loss by fusedops.

Accelerate compiles by Inductor if `dynamo_backend="inductor"`, and `fusedops.patch()` makes
Inductor replace them. `python examples/frameworks/train_with_accelerate.py` takes some 15 seconds.
"""

from __future__ import annotations

import tiny
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import fusedops


def main() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", dynamo_backend="inductor")
    model = tiny.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(tiny.Counting(), batch_size=tiny.BATCH)
    losses = []
    # With the default, "profitable", so small a model is left to Inductor.
    with fusedops.config.patch(fuse="always"):
        tiny.print_sites(model, next(iter(loader)))
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        with fusedops.patch():
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    tiny.print_losses(losses)


if __name__ == "__main__":
    main()
