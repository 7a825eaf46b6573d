"""Lightning with precision="bf16-mixed", with softmaxes, norms and the loss by fusedops.

The model in the LightningModule is compiled in place, by `model.compile(backend="fusedops")`.
`python examples/frameworks/train_with_lightning.py` takes some 20 seconds.
"""

from __future__ import annotations

from typing import Any

import lightning
import tiny
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

import fusedops


class Module(lightning.LightningModule):
    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model, self.losses = model, list[float]()

    def training_step(self, batch: dict[str, Any]) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    model, loader = tiny.build_model(), DataLoader(tiny.Counting(), batch_size=tiny.BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # With the default, "profitable", so small a model is left to Inductor.
    with fusedops.config.patch(fuse="always"):
        tiny.print_sites(model, next(iter(loader)))
        model.compile(backend="fusedops")
        module = Module(model)
        trainer.fit(module, loader)
    tiny.print_losses(module.losses)


if __name__ == "__main__":
    main()
