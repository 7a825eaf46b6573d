"""Has models with random weights, built from their configs, for tests and benchmarks.

The module `hugging_face` has the models of the package transformers, and `plain` has those that
need only torch.
"""

from __future__ import annotations

from tools.bench.zoo.hugging_face import HUGGING_FACE
from tools.bench.zoo.model import BASE, TINY, Model, Size, cast, main_tensors
from tools.bench.zoo.plain import PLAIN

MODELS: dict[str, Model] = {**HUGGING_FACE, **PLAIN}

__all__ = ["BASE", "MODELS", "TINY", "Model", "Size", "cast", "main_tensors"]
