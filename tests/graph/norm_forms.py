"""Norms of one dimension as models write them out, with a weight w and a bias b that broadcast."""

import torch
import torch.nn.functional as F
from torch import nn

N, EPS = 8, 1e-5

#: The variance of x with mean m over the dimension d.
VARIANCES = {
    "pow": lambda x, m, d: (x - m).pow(2).mean(d, keepdim=True),
    "**": lambda x, m, d: torch.mean((x - m) ** 2, d, True),
    "product": lambda x, m, d: ((x - m) * (x - m)).mean((d,), keepdim=True),
    "square": lambda x, m, d: torch.square(x - m).mean(dim=d, keepdim=True),
    "unbiased=False": lambda x, m, d: x.var(d, unbiased=False, keepdim=True),
    "by position": lambda x, m, d: torch.var(x, d, False, True),
    "correction": lambda x, m, d: torch.var(x, dim=(d,), correction=0, keepdim=True),
}
#: What becomes of x, its mean m and its variance v.
RESULTS = {
    "sqrt": lambda x, m, v, w, b: w * ((x - m) / torch.sqrt(v + EPS)) + b,
    "rsqrt": lambda x, m, v, w, b: (x - m) * torch.rsqrt(EPS + v) * w + b,
    "rsqrt first": lambda x, m, v, w, b: b + w * (torch.rsqrt(v + EPS) * (x - m)),
    "** 0.5": lambda x, m, v, w, b: (x - m) / (v + EPS) ** 0.5 * w + b,
    "** -0.5": lambda x, m, v, w, b: (x - m) * (v + EPS).pow(-0.5) * w + b,
    "1 / sqrt": lambda x, m, v, w, b: (x - m) * (1.0 / torch.sqrt(v + EPS)) * w + b,
    "reciprocal": lambda x, m, v, w, b: (x - m) * (v + EPS).sqrt().reciprocal() * w + b,
    "weight first": lambda x, m, v, w, b: w * (x - m) / torch.sqrt(v + EPS) + b,
    "weight times scale": lambda x, m, v, w, b: (x - m) * (torch.rsqrt(v + EPS) * w) + b,
    "no bias": lambda x, m, v, w, b: w * ((x - m) / torch.sqrt(v + EPS)),
    "no weight": lambda x, m, v, w, b: (x - m) / torch.sqrt(v + EPS) + b,
    "neither": lambda x, m, v, w, b: (x - m) / torch.sqrt(v + EPS),
}


def mean(x, d=-1):
    return x.mean(d, keepdim=True)


def centred(x, d=-1):
    return x - mean(x, d)


def squares(x, d=-1):
    return x.pow(2).mean(d, keepdim=True)


def _mean_of_sum(x, d):
    return x.sum(d, keepdim=True) / N


def _form(variance, result):
    def form(x, w, b, d):
        m = mean(x, d)
        return RESULTS[result](x, m, VARIANCES[variance](x, m, d), w, b)

    return form


def _var_mean(x, w, b, d):
    variance, mean = torch.var_mean(x, d, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + EPS) * w + b


def _var_mean_with_correction(x, w, b, d):
    variance, mean = torch.var_mean(x, dim=[d], correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(variance + EPS) * w + b


def _mean_taken_twice(x, w, b, d):
    variance = ((x - mean(x, d)) ** 2).mean(d, keepdim=True)
    return w * ((x - mean(x, d)) / torch.sqrt(variance + EPS)) + b


def _of_the_centred_input(x, w, b, d):
    c = centred(x, d)
    return c / (c.pow(2).mean(d, keepdim=True) + EPS).sqrt() * (1 + w) + b


LAYER_NORMS = {f"variance: {name}": _form(name, "sqrt") for name in VARIANCES}
LAYER_NORMS |= {f"result: {name}": _form("pow", name) for name in RESULTS if name != "sqrt"}
LAYER_NORMS |= {
    "var_mean": _var_mean,
    "var_mean with correction": _var_mean_with_correction,
    "mean taken twice": _mean_taken_twice,
    "of the centred input": _of_the_centred_input,
    "deviation squared": lambda x, w, b, d: (
        centred(x, d) / (x.std(d, False, True) ** 2 + EPS).sqrt()
    ),
    "unbiased": lambda x, w, b, d: (
        centred(x, d) * torch.rsqrt(x.var(d, keepdim=True) + EPS) * w + b
    ),
    "no eps": lambda x, w, b, d: w * (centred(x, d) / x.std(d, unbiased=False, keepdim=True)),
    "mean as sum / N": lambda x, w, b, d: (
        (x - _mean_of_sum(x, d))
        / torch.sqrt(_mean_of_sum((x - _mean_of_sum(x, d)).pow(2), d) + EPS)
    ),
    "unsqueezed": lambda x, w, b, d: (
        (x - x.mean(d).unsqueeze(d)) / torch.sqrt(x.var(d, correction=0) + EPS).unsqueeze(d) * w
    ),
}
RMS_NORMS = {
    "rsqrt": lambda x, w, b, d: x * torch.rsqrt(squares(x, d) + EPS) * w,
    "no weight": lambda x, w, b, d: x * torch.rsqrt((x * x).mean(d, keepdim=True) + EPS),
    "quotient": lambda x, w, b, d: x / torch.sqrt((x * x).mean(d, keepdim=True) + EPS) * w,
    "weight first": lambda x, w, b, d: w * x / torch.sqrt(squares(x, d) + EPS),
    "weight times scale": lambda x, w, b, d: x * (w * torch.rsqrt(squares(x, d) + EPS)),
    "weight, scale, input": lambda x, w, b, d: w * torch.rsqrt(x.square().mean(d, True) + EPS) * x,
    "reciprocal": lambda x, w, b, d: w * (x * (squares(x, d) + EPS).sqrt().reciprocal()),
    "1 / sqrt": lambda x, w, b, d: w * (x * (1 / torch.sqrt(squares(x, d) + EPS))),
    "pow(-0.5)": lambda x, w, b, d: w * (x * torch.pow(squares(x, d) + EPS, -0.5)),
    "1 + weight": lambda x, w, b, d: (1 + w) * (x * (squares(x, d) + EPS) ** -0.5),
    "sum / N": lambda x, w, b, d: w * x * torch.rsqrt(_mean_of_sum(x**2, d) + EPS),
    "norm ** 2 / N": lambda x, w, b, d: (
        w * x * torch.rsqrt(x.norm(dim=d, keepdim=True) ** 2 / N + EPS)
    ),
    "sum + eps": lambda x, w, b, d: x * torch.rsqrt(x.pow(2).sum(d, keepdim=True) + EPS) * N**0.5,
    "unsqueeze": lambda x, w, b, d: w * x * torch.rsqrt(x.pow(2).mean(d) + EPS).unsqueeze(d),
    "expand_as": lambda x, w, b, d: w * (x / torch.sqrt(squares(x, d) + EPS).expand_as(x)),
    "no eps": lambda x, w, b, d: w * (x / squares(x, d).sqrt()),
    "a further factor": lambda x, w, b, d: x * torch.rsqrt(squares(x, d) + EPS) / 2 * w,
}

#: Those of images alone.
OF_IMAGES = {
    "spatial_layer_norm: unbiased, no eps": lambda x, w, b, d: (
        w * centred(x, d) / x.std(d, keepdim=True)
    ),
    "spatial_rms_norm: [:, None]": lambda x, w, b, d: (
        w * x * torch.rsqrt(x.pow(2).mean(-3) + EPS)[:, None]
    ),
    "spatial_rms_norm: einsum": lambda x, w, b, d: (
        x / torch.sqrt(torch.einsum("bchw,bchw->bhw", x, x)[:, None] / N + EPS)
    ),
    "spatial_rms_norm: einsum of dots": lambda x, w, b, d: (
        w * x / torch.sqrt(torch.einsum("...chw, ...chw -> ...hw", x, x)[:, None] / N + EPS)
    ),
    "spatial_rms_norm: unit norm": lambda x, w, b, d: (
        x / torch.linalg.vector_norm(x, dim=d, keepdim=True)
    ),
    "spatial_rms_norm: unit norm times sqrt(N)": lambda x, w, b, d: (
        x / x.norm(dim=d, keepdim=True) * N**0.5 * w
    ),
    "spatial_rms_norm: rsqrt of the sum": lambda x, w, b, d: (
        w * (x * torch.rsqrt(x.pow(2).sum(d, keepdim=True)))
    ),
    # Norms without a spatial op run on the permuted image.
    "std_norm: of channels": lambda x, w, b, d: centred(x, d) / (x.std(d, keepdim=True) + EPS),
    "l2_norm: of channels": lambda x, w, b, d: F.normalize(x, dim=d) * N**0.5 * w,
    "l2_norm: of channels, clamped": lambda x, w, b, d: (
        x / x.norm(dim=d, keepdim=True).clamp(min=EPS)
    ),
    "spatial_rms_norm: one factor for all": lambda x, w, b, d: (
        x * torch.rsqrt(squares(x, d) + EPS) * w[:1]
    ),
}


def _of_rows(form):
    return lambda x, w, b: form(x, w, b, -1)


def _of_channels(form):
    return lambda x, w, b: form(x, w[:, None, None], b[:, None, None], 1)


#: Functions of rows, and of images whose channels are normalised, by the op that they become.
ROWS = {f"layer_norm: {name}": _of_rows(form) for name, form in LAYER_NORMS.items()}
ROWS |= {f"rms_norm: {name}": _of_rows(form) for name, form in RMS_NORMS.items()}
CHANNELS = {f"spatial_layer_norm: {name}": _of_channels(form) for name, form in LAYER_NORMS.items()}
CHANNELS |= {f"spatial_rms_norm: {name}": _of_channels(form) for name, form in RMS_NORMS.items()}
CHANNELS |= {name: _of_channels(form) for name, form in OF_IMAGES.items()}


class LayerNorm(nn.Module):
    """As in Google's BERT and in Segment Anything: eps is an attribute."""

    def __init__(self, dim, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(shape, dtype=torch.float64))
        self.dim, self.eps = dim, EPS

    def forward(self, x):
        u = x.mean(self.dim, keepdim=True)
        s = (x - u).pow(2).mean(self.dim, keepdim=True)
        return self.weight * ((x - u) / torch.sqrt(s + self.eps)) + self.bias


def draw(batch=3, dtype=torch.float64, requires_grad=False):
    """Rows, and a weight and a bias of their length."""
    shapes = (batch, 5, N), (N,), (N,)
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def draw_images(batch=2, dtype=torch.float64, requires_grad=False, format=torch.contiguous_format):
    """Images, and a weight and a bias of their channels."""
    images = torch.randn(batch, N, 4, 5, dtype=dtype).contiguous(memory_format=format)
    drawn = [images, torch.randn(N, dtype=dtype), torch.randn(N, dtype=dtype)]
    return [tensor.requires_grad_(requires_grad) for tensor in drawn]
