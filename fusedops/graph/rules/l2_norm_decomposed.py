"""l2_norm as torch and models write it, with or without a scale; ScaleNorm.

before    y = torch.nn.functional.normalize(x, dim=-1) * scale * weight
          y = x / x.norm(dim=-1, keepdim=True).clamp(min=eps) * g
          y = x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True).clamp(min=eps * eps))
after     y, rstd = torch.ops.fusedops.l2_norm(x, normalized_shape, weight * scale, eps)
"""

from __future__ import annotations

from fusedops.graph.rules.norm_decomposed import NormDecomposed


class L2NormDecomposed(NormDecomposed):
    """A decomposed l2_norm."""

    ops = ("l2_norm",)
