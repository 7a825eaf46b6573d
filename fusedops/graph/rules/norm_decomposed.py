"""Replaces norms that models write as several calls, in many orders.

before    mean = x.mean(-1, keepdim=True)
          var = (x - mean).pow(2).mean(-1, keepdim=True)        or x.var(-1, unbiased=False, ...)
          y = weight * ((x - mean) / torch.sqrt(var + eps)) + bias         or * torch.rsqrt(...)
after     y, mean, rstd = torch.ops.fusedops.layer_norm(x, normalized_shape, weight, bias, eps)

before    y = weight * (x - mean) / (x.std(-1, keepdim=True) + eps) + bias
after     y, mean, rstd = torch.ops.fusedops.std_norm(x, normalized_shape, weight, bias, eps)

before    h = x.to(torch.float32)
          h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
          y = weight * h.to(x.dtype)                      Llama; T5 where weight has 16 bits
          y = weight * h                                  T5 with a float32 weight
          y = (h * (1.0 + weight.float())).to(x.dtype)    Gemma
after     y, rstd = torch.ops.fusedops.rms_norm(x, normalized_shape, weight, eps, offset, rounds)

before    y = torch.nn.functional.normalize(x, dim=-1) * scale * weight
          y = x / x.norm(dim=-1, keepdim=True).clamp(min=eps) * g       ScaleNorm
          y = x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True).clamp(min=eps * eps))
after     y, rstd = torch.ops.fusedops.l2_norm(x, normalized_shape, weight * scale, eps)

before    y = weight[:, None, None] * ((x - x.mean(1, ...)) / ...) + bias[:, None, None]
          y = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + eps) * weight[:, None, None]
after     y, mean, rstd = torch.ops.fusedops.spatial_layer_norm(x, 1, weight, bias, eps)
          y, rstd = torch.ops.fusedops.spatial_rms_norm(x, 1, weight, eps)

The quotient by std + eps is the norm of the Annotated Transformer. The `spatial_` ops normalise one
dimension that is not the last, as the channels of images in ConvNeXt, Segment Anything and NAFNet.
The product with the weight stays in the graph if the model rounds before it and the op would not.
"""

from __future__ import annotations

from fusedops.graph.analysis.calls import Call
from fusedops.graph.readers.norm_chain import arguments_of, continued, input_of, read_norm
from fusedops.graph.rule import UNKNOWN_ROW, Match, Rule


class NormDecomposed(Rule):
    """Replaces a norm that is written as several calls, if one of `ops` computes it."""

    def __init__(self, name: str, *ops: str) -> None:
        self.name, self.ops = name, ops

    def match(self, call: Call) -> Match | None:
        norm = read_norm(call)
        if norm is None or norm.op not in self.ops:
            return None
        # The op's result has the dtype of its input. The site therefore ends with the last call
        # whose result has the dtype of the norm's input, before or after the input's casts.
        ends = [(extended, input_of(extended)) for extended in continued(norm)]
        norm, input = next(((n, i) for n, i in reversed(ends) if i), (norm, None))
        refusal = norm.refusal
        if input is None:
            refusal = refusal or "no op supports its combination of dtypes"
        if norm.has_factors and None in norm.over.known_row:
            refusal = refusal or UNKNOWN_ROW
        if norm.is_shared:
            refusal = refusal or "something else uses an intermediate result"
        arguments = arguments_of(norm, input or norm.input)
        site = Call(norm.op, norm.op, norm.last, arguments, refusal)
        order = norm.over.order(norm.kind)
        return Match(site, {norm.last: 0}, norm.nodes, order=order)
