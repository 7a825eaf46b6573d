"""Models with random weights, built from their configs: what the tests count and the bench times.

`hugging_face` holds those of the package transformers, `plain` those that need torch alone.
"""

from __future__ import annotations

from fusedops.cli.bench.zoo.hugging_face import HUGGING_FACE
from fusedops.cli.bench.zoo.model import BASE, TINY, Model, Size, cast, main_tensors
from fusedops.cli.bench.zoo.plain import PLAIN

MODELS: dict[str, Model] = {**HUGGING_FACE, **PLAIN}

__all__ = ["BASE", "MODELS", "TINY", "Model", "Size", "cast", "main_tensors"]
