"""Decomposed rms_norm, as in Llama, T5 and Gemma, which round at different places.

before    h = x.to(torch.float32)
          h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
          y = weight * h.to(x.dtype)                      Llama; T5 where weight has 16 bits
          y = weight * h                                  T5 with a float32 weight
          y = (h * (1.0 + weight.float())).to(x.dtype)    Gemma
after     y, rstd = torch.ops.fusedops.rms_norm(x, normalized_shape, weight, eps, offset, rounds)
"""

from __future__ import annotations

from fusedops.graph.rules.norm_decomposed import NormDecomposed


class RmsNormDecomposed(NormDecomposed):
    """A decomposed rms_norm."""

    ops = ("rms_norm",)
