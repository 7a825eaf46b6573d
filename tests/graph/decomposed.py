"""Softmax and norms of rows as models write them out, for tests of what becomes of them."""

import torch

EPS = 1e-5


def softmax_decomposed(x, dim=-1):
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def layer_norm_decomposed(x, weight=None, bias=None):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    normed = (x - mean) / torch.sqrt(variance + EPS)
    normed = normed if weight is None else weight * normed
    return normed if bias is None else normed + bias


def rms_norm_decomposed(x, weight=None):
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return normed if weight is None else weight * normed
