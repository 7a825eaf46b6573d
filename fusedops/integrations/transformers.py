"""Provides attention for Hugging Face transformers that computes its weights by our masked softmax.

``import fusedops.integrations.transformers`` registers the implementation "fusedops" for
``from_pretrained(..., attn_implementation="fusedops")`` and ``model.set_attn_implementation``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch import nn

from fusedops.functional import masked_softmax_dropout

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(
        f"fusedops.integrations.transformers needs transformers from version 5 on ({error}); run: "
        "pip install 'transformers>=5'"
    ) from error

NAME = "fusedops"
#: Arguments for other implementations of attention -> what they are. To ignore one would give wrong
#: results, so that a call with one of them is refused.
_UNSUPPORTED = {
    "cache": "a paged cache",
    "indices": "the indices of sparse attention",
    "block_indices": "the indices of sparse attention",
}


def register(name: str = NAME) -> None:
    """Registers attention and its masks under a name. The import of this module does so for
    "fusedops".

    Args:
        name: the ``attn_implementation`` by which a model chooses it.

    Source: `transformers.AttentionInterface.register`, `transformers.AttentionMaskInterface`.
    """
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


def attention_mask(*args: Any, config: Any = None, **kwargs: Any) -> torch.Tensor | None:
    """Returns the mask for `attention_forward`. It is a bool tensor that is True for visible keys,
    or None where it would only express causality.

    Args:
        args, kwargs: those of ``transformers.masking_utils.sdpa_mask``.
        config: the config of the model that asks for the mask.

    Raises:
        ValueError: the model computes attention itself, whatever the implementation is. Such a
            model would add the bool mask to its scores.

    Source: `transformers.masking_utils.sdpa_mask`.
    """
    if not _uses_the_interface(type(config)):
        raise ValueError(
            f'attn_implementation="{NAME}": the model of {type(config).__name__} computes '
            'attention itself; use "eager"'
        )
    return sdpa_mask(*args, config=config, **kwargs)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _uses_the_interface(config_class: Any) -> bool:
    """Returns the result of :func:`_source_uses_the_interface` in a form that torch.compile takes
    as a constant. Otherwise torch.compile would trace that function again for every graph and
    ignore its cache."""
    return _source_uses_the_interface(config_class)


@functools.cache
def _source_uses_the_interface(config_class: Any) -> bool:
    """Whether the models that have this class of config call the registered implementation. Their
    source says so, which transformers reads for the same purpose. Returns True if the source of the
    models is not known."""
    modeling = sys.modules.get(config_class.__module__.replace("configuration_", "modeling_"))
    if modeling is None or "configuration_" not in config_class.__module__:
        return True
    return "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(modeling)


def attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Computes attention with its weights, as transformers' modules call it.

    :math:`w = \mathrm{dropout}_p(\mathrm{softmax}(\mathrm{cap}(s\, q k^T) + b + m))`, by
    :func:`fusedops.masked_softmax_dropout`, and :math:`w v`. Weights are computed in float32
    (float64 for float64) and rounded once. Keys and values of grouped heads are not repeated.

    Args:
        module: the attention module. Its ``training`` switches dropout on, and its ``is_causal``
            is used where the argument is None.
        query: ``[batch, heads, queries, features]``.
        key, value: ``[batch, key heads, keys, features]``. The number of key heads divides that of
            heads.
        attention_mask: bool (True where visible) or floating (added), of a shape that broadcasts to
            ``[batch, heads, queries, keys]``; windows and chunks are part of it. Without one, where
            causality holds, query ``i`` sees the keys up to ``i``; a single query sees all keys.
        scaling: multiplies the scores; by default ``features ** -0.5``.
        dropout: the probability of a zero in training.
        is_causal: whether causality holds where there is no mask.
        softcap: bounds the scaled scores by a tanh.
        s_aux: the sink of each head, ``[heads]``.
        position_bias: floating, added to the scaled scores.
        kwargs: what transformers pass on to all implementations; not used.

    Returns:
        The output ``[batch, queries, heads, features]``, contiguous, and the weights ``[batch,
        heads, queries, keys]``, both of ``query``'s dtype.

    Raises:
        ValueError: an argument that this implementation does not have, such as a paged cache.
        RuntimeError: as in :func:`fusedops.masked_softmax`.

    Source: `eager_attention_forward` and `sdpa_attention_forward` of transformers; Ainslie et al.,
    "GQA" (2023), for grouped heads.
    """
    _refuse_unsupported(kwargs)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    hides_later = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    weights = masked_softmax_dropout(
        _by_group(query, key.shape[1]).matmul(key.transpose(2, 3)).view(*query.shape[:3], -1),
        attention_mask,
        p=dropout,
        training=module.training and dropout > 0,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal="top_left" if hides_later else False,
        # With a finite value, rows that see no key become uniform, as in eager attention. With -inf
        # they would be NaN.
        mask_value=torch.finfo(query.dtype).min,
        bias=position_bias,
        dtype=query.dtype,
        sinks=None if s_aux is None else s_aux.reshape(-1, 1),
        softcap=softcap,
    )
    heads = _by_group(weights, value.shape[1]).matmul(value).view(*query.shape[:3], -1)
    return heads.transpose(1, 2).contiguous(), weights


def _by_group(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """Returns a tensor [batch, heads, queries, n] as [batch, groups, heads of a group * queries,
    n], so that a matrix product with the keys of a group serves all of its heads."""
    return tensor.reshape(tensor.shape[0], groups, -1, tensor.shape[3])


def _refuse_unsupported(kwargs: dict[str, Any]) -> None:
    for name, what in _UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f'attn_implementation="{NAME}" does not support {what} ({name}); use "eager"'
            )


register()
