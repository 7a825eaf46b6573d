"""Hugging Face's Trainer in bfloat16, with softmaxes, norms and the loss by fusedops.

Trainer compiles by Inductor if `torch_compile=True`, and `fusedops.patch()` makes Inductor replace
them. `python examples/frameworks/train_with_trainer.py` takes some 15 seconds.
"""

from __future__ import annotations

import tempfile

import tiny
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

import fusedops


def main() -> None:
    model, data = tiny.build_model(), tiny.Counting()
    # With the default, "profitable", so small a model is left to Inductor.
    with tempfile.TemporaryDirectory() as folder, fusedops.config.patch(fuse="always"):
        tiny.print_sites(model, default_collate([data[0], data[1]]))
        arguments = TrainingArguments(
            folder,
            bf16=True,
            torch_compile=True,
            use_cpu=True,
            max_steps=tiny.STEPS,
            per_device_train_batch_size=tiny.BATCH,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data)
        with fusedops.patch():
            trainer.train()
    tiny.print_losses([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


if __name__ == "__main__":
    main()
