"""Decomposed layer_norm and rms_norm over one dimension that is not the last, as over the channels
of images in ConvNeXt, Segment Anything and NAFNet.

before    u = x.mean(1, keepdim=True)
          s = (x - u).pow(2).mean(1, keepdim=True)
          x = (x - u) / torch.sqrt(s + eps)
          y = weight[:, None, None] * x + bias[:, None, None]
after     y, mean, rstd = torch.ops.fusedops.spatial_layer_norm(x, 1, weight, bias, eps)

before    y = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + eps) * weight[:, None, None]
after     y, rstd = torch.ops.fusedops.spatial_rms_norm(x, 1, weight, eps)

A result that is rounded before the weight is multiplied by it outside of the op.
"""

from __future__ import annotations

from fusedops.graph.rules.norm_decomposed import NormDecomposed


class SpatialLayerNormDecomposed(NormDecomposed):
    """A decomposed layer_norm over one dimension that is not the last."""

    ops = ("spatial_layer_norm",)


class SpatialRmsNormDecomposed(NormDecomposed):
    """A decomposed rms_norm over one dimension that is not the last."""

    ops = ("spatial_rms_norm",)
