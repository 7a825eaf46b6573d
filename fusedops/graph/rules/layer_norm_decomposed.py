"""Decomposed layer_norm, and the norm of the Annotated Transformer.

before    mean = x.mean(-1, keepdim=True)
          var = (x - mean).pow(2).mean(-1, keepdim=True)        or x.var(-1, unbiased=False, ...)
          y = weight * ((x - mean) / torch.sqrt(var + eps)) + bias         or * torch.rsqrt(...)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(x, normalized_shape, weight, bias, eps)

before    y = weight * (x - mean) / (x.std(-1, keepdim=True) + eps) + bias
after     y, mean, rstd = torch.ops.fusedops.std_norm(x, normalized_shape, weight, bias, eps)
"""

from __future__ import annotations

from fusedops.graph.rules.norm_decomposed import NormDecomposed


class LayerNormDecomposed(NormDecomposed):
    """A decomposed layer_norm or std_norm."""

    ops = ("layer_norm", "std_norm")
