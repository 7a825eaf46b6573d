"""A Llama of one layer with random weights, and tokens to train it on, for the examples here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import fusedops

STEPS, BATCH, LENGTH, VOCABULARY = 6, 4, 16, 32


def build_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation="eager",  # computes a softmax that can be replaced
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences that count up from a random token."""

    def __init__(self) -> None:
        first = torch.randint(VOCABULARY, (STEPS * BATCH, 1))
        self.tokens = (first + torch.arange(LENGTH)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def print_sites(model: LlamaForCausalLM, batch: dict[str, Any]) -> None:
    """Lists what is replaced when the model is trained in mixed precision."""
    with torch.autocast("cpu", torch.bfloat16):
        print(fusedops.explain(model, **batch))


def print_losses(losses: list[float]) -> None:
    print(f"loss {losses[0]:.2f} after the first step, {losses[-1]:.2f} after the last")
