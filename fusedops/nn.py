"""The ops as modules. Those that ``torch.nn`` has too have the same parameters, so that state dicts
can be loaded unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import nn

from fusedops import _arguments
from fusedops import functional as F
from fusedops.functional import Causal, MaskedRows, RmsVariant, Window
from fusedops.losses import Reduction, check_options, cross_entropy, linear_cross_entropy


class _Unscriptable:
    """Refuses torch.jit.script, which compiles forward's source and knows few of Python's types."""

    def __prepare_scriptable__(self) -> None:
        raise TypeError(
            f"fusedops.nn.{type(self).__name__}: torch.jit.script does not take this module; use "
            "torch.jit.trace, torch.export or torch.compile"
        )


#: Settings of modules, by the names that their attributes and the functions' arguments have.
_OF_MASKED_SOFTMAX = ("scale", "causal", "mask_value", "p", "masked_rows", "window", "softcap")
_OF_LOSSES = ("reduction", "ignore_index", "label_smoothing", "z_loss", "softcap")


def _settings(module: nn.Module, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def _shown(module: nn.Module, *names: str) -> str:
    """Returns settings of a module as repr() shows them."""
    return ", ".join(f"{name}={value!r}" for name, value in _settings(module, names).items())


class Softmax(_Unscriptable, nn.Softmax):
    r"""``torch.nn.Softmax``, computed by :func:`fusedops.softmax`.

    Args:
        dim: the dimension to normalise. If it is None, torch's own forward runs, which guesses a
            dimension and warns.

    Shape:
        The input may have any shape, and the result has the same. Dtypes as in
        :func:`fusedops.softmax`.

    Raises:
        RuntimeError: by ``forward``, as in :func:`fusedops.softmax`.

    Source: :class:`torch.nn.Softmax`.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) if self.dim is None else F.softmax(input, self.dim)


class LogSoftmax(_Unscriptable, nn.LogSoftmax):
    r"""``torch.nn.LogSoftmax``, computed by :func:`fusedops.log_softmax`.

    Args:
        dim: as in :class:`Softmax`.

    Shape:
        The input may have any shape, and the result has the same. Dtypes as in
        :func:`fusedops.log_softmax`.

    Raises:
        RuntimeError: by ``forward``, as in :func:`fusedops.log_softmax`.

    Source: :class:`torch.nn.LogSoftmax`.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) if self.dim is None else F.log_softmax(input, self.dim)


class MaskedSoftmax(_Unscriptable, nn.Module):
    r"""Attention weights from attention scores: scale, bias, mask, softmax and dropout in one op.

    :math:`y = \mathrm{dropout}_p(\mathrm{softmax}(s x + b + m))` over the last dimension, with
    dropout only in training mode.

    Args:
        scale: multiplies the scores, :math:`1 / \sqrt{d}` for heads of size ``d``.
        p: the probability of a zero in training.
        sinks: a number that is one more score of each row, left out of the result.
        causal, mask_value, masked_rows, window, softcap: as in :func:`fusedops.masked_softmax`.

    Shape:
        The input is ``[..., queries, keys]``, of any floating dtype. The mask, bool (True where
        visible) or floating (added), and the bias broadcast to it; ``start`` and ``end``, int32 or
        int64, and ``sinks``, floating, broadcast to ``[..., queries]``; given sinks take the place
        of the module's. The result has the input's shape and dtype.

    Raises:
        TypeError: a ``scale``, ``mask_value``, ``p``, ``sinks`` or ``softcap`` that is not a
            number.
        ValueError: ``p`` outside [0, 1], an invalid ``causal``, ``window`` or ``masked_rows``.
        RuntimeError: by ``forward``, as in :func:`fusedops.masked_softmax_dropout`.

    Source: as for :func:`fusedops.masked_softmax_dropout`.
    """

    def __init__(
        self,
        scale: float = 1.0,
        causal: Causal = False,
        mask_value: float = -math.inf,
        p: float = 0.0,
        masked_rows: MaskedRows = "nan",
        window: Window | None = None,
        sinks: float | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.p = _arguments.number("MaskedSoftmax", "p", p)
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is {p!r}, wanted a probability in [0, 1]")
        _arguments.one_of("causal", causal, (False, True, "top_left", "bottom_right"))
        _arguments.one_of("masked_rows", masked_rows, get_args(MaskedRows))
        self.scale = _arguments.number("MaskedSoftmax", "scale", scale)
        self.causal = causal
        self.mask_value = _arguments.number("MaskedSoftmax", "mask_value", mask_value)
        self.masked_rows = masked_rows
        if window is not None:
            _arguments.window(window, causal)
        self.window = window
        self.sinks = _arguments.optional_number("MaskedSoftmax", "sinks", sinks)
        self.softcap = _arguments.optional_number("MaskedSoftmax", "softcap", softcap)

    def forward(
        self,
        input: torch.Tensor,
        mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        start: torch.Tensor | None = None,
        end: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return F.masked_softmax_dropout(
            input,
            mask,
            training=self.training and self.p > 0,  # avoids drawing an unused seed
            bias=bias,
            start=start,
            end=end,
            sinks=_value_or(sinks, self.sinks),
            **_settings(self, _OF_MASKED_SOFTMAX),
        )

    def extra_repr(self) -> str:
        *names, softcap = _OF_MASKED_SOFTMAX
        return _shown(self, *names, "sinks", softcap)


def _value_or(value: torch.Tensor | None, default: float | None) -> torch.Tensor | float | None:
    return default if value is None else value


torch.fx.wrap("_value_or")  # one node: a proxy does not know whether its value is None


class CrossEntropyLoss(_Unscriptable, nn.CrossEntropyLoss):
    r"""``torch.nn.CrossEntropyLoss``, computed by :func:`fusedops.cross_entropy`.

    Args:
        weight, ignore_index, reduction, label_smoothing: as in ``torch.nn.CrossEntropyLoss``, which
            has the same buffer ``weight``.
        z_loss, softcap: as in :func:`fusedops.cross_entropy`.

    Shape:
        The input is ``[classes]``, ``[N, classes]`` or ``[N, classes, d1, ...]``, of any floating
        dtype, and the target, int64, int32 or uint8, has its shape without the classes. The result
        is a number or, where ``reduction`` is "none", has the target's shape. It is float32 for a
        16-bit input.

    Raises:
        TypeError: a ``label_smoothing``, ``z_loss`` or ``softcap`` that is not a number.
        ValueError: an invalid ``reduction``.
        RuntimeError: by ``forward``, as in :func:`fusedops.cross_entropy`.

    Source: :class:`torch.nn.CrossEntropyLoss`.
    """

    def __init__(
        self,
        weight: torch.Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
    ) -> None:
        name = "CrossEntropyLoss"
        _arguments.one_of("reduction", reduction, get_args(Reduction))
        smoothing = _arguments.number(name, "label_smoothing", label_smoothing)
        super().__init__(
            weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing
        )
        self.z_loss = _arguments.number(name, "z_loss", z_loss)
        self.softcap = _arguments.optional_number(name, "softcap", softcap)

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        settings = _settings(self, _OF_LOSSES)
        loss: torch.Tensor = cross_entropy(input, target, self.weight, **settings)
        return loss

    def extra_repr(self) -> str:
        reduction, ignore_index, *names = _OF_LOSSES
        return _shown(self, ignore_index, reduction, *names)


class LinearCrossEntropyLoss(_Unscriptable, nn.Module):
    r"""``torch.nn.LinearCrossEntropyLoss``, computed by :func:`fusedops.linear_cross_entropy`.

    It has a linear layer, ``linear``, and computes the cross entropy of its results.

    Args:
        in_features, num_classes, bias, device, dtype: those of the linear layer.
        out_features: a size or sizes ``d1, ..., dK`` of the positions that are classified, each by
            a head of its own; the linear layer has the results of all. By default one head.
        reduction, weight, ignore_index, label_smoothing, options, z_loss, softcap: as in
            :func:`fusedops.linear_cross_entropy`. ``weight`` is a buffer. ``options`` change
            nothing, and are not kept.

    Shape:
        The input is ``[in_features]`` or ``[..., in_features]`` of the layer's dtype, and the
        target, int64, int32 or uint8, has its shape without the features. With ``out_features``
        they are ``[N, in_features]`` and ``[N, *out_features]``. The result is a number or, where
        ``reduction`` is "none", has the target's shape. It is float32 for a 16-bit input.

    Raises:
        TypeError: a ``label_smoothing``, ``z_loss`` or ``softcap`` that is not a number,
            ``out_features`` that are no sizes, ``options`` of another type.
        ValueError: an invalid ``reduction``.
        RuntimeError: by ``forward``, as in :func:`fusedops.linear_cross_entropy`.

    Source: ``torch.nn.LinearCrossEntropyLoss`` of torch 2.13, whose parameters have these names.
    """

    weight: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: int | Sequence[int] = (),
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        reduction: Reduction = "mean",
        weight: torch.Tensor | None = None,
        ignore_index: int | None = -100,
        label_smoothing: float = 0.0,
        options: nn.LinearCrossEntropyOptions | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        name = "LinearCrossEntropyLoss"
        _arguments.one_of("reduction", reduction, get_args(Reduction))
        check_options(name, options)
        self.num_classes = num_classes
        self.out_features = _arguments.sizes(name, "out_features", out_features)
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = _arguments.number(name, "label_smoothing", label_smoothing)
        self.z_loss = _arguments.number(name, "z_loss", z_loss)
        self.softcap = _arguments.optional_number(name, "softcap", softcap)
        self.register_buffer("weight", weight)
        # torch's module has this layer too, so that state dicts fit.
        results = math.prod(self.out_features, start=num_classes)
        self.linear = nn.Linear(in_features, results, bias=bias, device=device, dtype=dtype)

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        linear_weight: torch.Tensor = self.linear.weight
        linear_bias: torch.Tensor | None = self.linear.bias
        if self.out_features:
            shape = (self.num_classes, *self.out_features)
            linear_weight = linear_weight.reshape(*shape, self.linear.in_features)
            linear_bias = None if linear_bias is None else linear_bias.reshape(shape)
        return linear_cross_entropy(
            input,
            linear_weight,
            target,
            linear_bias=linear_bias,
            weight=self.weight,
            **_settings(self, _OF_LOSSES),
        )

    def extra_repr(self) -> str:
        return _shown(self, "out_features", *_OF_LOSSES)


class LayerNorm(_Unscriptable, nn.LayerNorm):
    r"""``torch.nn.LayerNorm``, computed by :func:`fusedops.layer_norm`.

    Args:
        normalized_shape, eps, elementwise_affine, bias, device, dtype: as in
            ``torch.nn.LayerNorm``, which has the same parameters.

    Shape:
        The input's shape ends in ``normalized_shape``, and the result has the same shape.

    Raises:
        TypeError: ``normalized_shape`` is neither a size nor a list of sizes.
        RuntimeError: by ``forward``, as in :func:`fusedops.layer_norm`.

    Source: :class:`torch.nn.LayerNorm`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = _arguments.sizes("LayerNorm", "normalized_shape", normalized_shape)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class _AffineNorm(_Unscriptable, nn.Module):
    """A norm whose weight begins as ones and whose bias begins as zeros; it may lack either."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def _register(
        self, shape: tuple[int, ...], has_weight: bool, has_bias: bool, **factory: Any
    ) -> None:
        """Adds the parameters; ``factory`` is their device and dtype."""
        for name, is_used in (("weight", has_weight), ("bias", has_bias)):
            values = torch.empty(shape, **factory) if is_used else None
            self.register_parameter(name, None if values is None else nn.Parameter(values))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class StdNorm(_AffineNorm):
    r"""The LayerNorm of the Annotated Transformer, computed by :func:`fusedops.std_norm`.

    Unlike ``torch.nn.LayerNorm`` it divides by the unbiased standard deviation plus ``eps``.

    Args:
        normalized_shape, elementwise_affine, bias, device, dtype: as in ``torch.nn.LayerNorm``.
        eps: added to the standard deviation.

    Shape:
        The input's shape ends in ``normalized_shape``, and the result has the same shape. The
        parameters ``weight`` and ``bias`` are ``a_2`` and ``b_2`` in the source. Both are None if
        ``elementwise_affine`` is False; ``bias`` is None also if the argument ``bias`` is False.

    Raises:
        TypeError: ``normalized_shape`` is neither a size nor a list of sizes.
        RuntimeError: by ``forward``, as in :func:`fusedops.std_norm`.

    Source: `The Annotated Transformer <https://nlp.seas.harvard.edu/annotated-transformer>`_.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _arguments.sizes("StdNorm", "normalized_shape", normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        are_used = elementwise_affine, elementwise_affine and bias
        self._register(self.normalized_shape, *are_used, device=device, dtype=dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.std_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, {_shown(self, 'eps', 'elementwise_affine')}"


class RMSNorm(_Unscriptable, nn.RMSNorm):
    r"""``torch.nn.RMSNorm``, computed by :func:`fusedops.rms_norm`.

    Args:
        normalized_shape, eps, elementwise_affine, device, dtype: as in ``torch.nn.RMSNorm``.
        variant: "torch", "llama", "t5" or "gemma", as in :func:`fusedops.rms_norm`: where values
            are rounded, and whether 1 is added to the weight, which is then initialised to 0.

    Shape:
        The input's shape ends in ``normalized_shape``, and the result has the same shape.

    Raises:
        TypeError: ``normalized_shape`` is neither a size nor a list of sizes.
        ValueError: an invalid ``variant``.
        RuntimeError: by ``forward``, as in :func:`fusedops.rms_norm`.

    Source: :class:`torch.nn.RMSNorm`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        variant: RmsVariant = "torch",
    ) -> None:
        _arguments.one_of("variant", variant, get_args(RmsVariant))
        self.variant = variant
        shape = _arguments.sizes("RMSNorm", "normalized_shape", normalized_shape)
        super().__init__(shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        if self.elementwise_affine:
            nn.init.constant_(self.weight, 0.0 if self.variant == "gemma" else 1.0)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape = self.normalized_shape
        return F.rms_norm(input, shape, self.weight, self.eps, variant=self.variant)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {_shown(self, 'variant')}"


class _ChannelNorm(_AffineNorm):
    """A norm over dimension 1, whose weight and bias have a number for each channel."""

    def __init__(
        self, num_channels: int, eps: float, has_weight: bool, has_bias: bool, **factory: Any
    ) -> None:
        super().__init__()
        shape = _arguments.sizes(type(self).__name__, "num_channels", num_channels)
        if len(shape) != 1:
            raise TypeError(f"num_channels is {num_channels!r}, wanted one size")
        self.num_channels, self.eps = shape[0], eps
        self._register(shape, has_weight, has_bias, **factory)

    def extra_repr(self) -> str:
        return f"{self.num_channels}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class LayerNorm2d(_ChannelNorm):
    r"""LayerNorm over the channels of images, computed by :func:`fusedops.spatial_layer_norm`.

    Args:
        num_channels: the number of channels.
        eps: added to the variance.
        elementwise_affine: if False, there is neither weight nor bias.
        bias: if False, there is no bias.
        device, dtype: those of the parameters.

    Shape:
        The input is ``[batch, num_channels, ...]``, contiguous or ``torch.channels_last``, and the
        result has the same shape and layout. ``weight`` and ``bias`` are ``[num_channels]``, under
        the names that the LayerNorm2d of torchvision, timm and Segment Anything have.

    Raises:
        TypeError: ``num_channels`` is not a size.
        RuntimeError: by ``forward``, as in :func:`fusedops.spatial_layer_norm`.

    Source: as for :func:`fusedops.spatial_layer_norm`.
    """

    def __init__(
        self,
        num_channels: int,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        are_used = elementwise_affine, elementwise_affine and bias
        super().__init__(num_channels, eps, *are_used, device=device, dtype=dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.spatial_layer_norm(input, 1, self.weight, self.bias, self.eps)


class RMSNorm2d(_ChannelNorm):
    r"""RMSNorm over the channels of images, computed by :func:`fusedops.spatial_rms_norm`.

    Args:
        num_channels, eps, elementwise_affine, device, dtype: as in :class:`LayerNorm2d`.

    Shape:
        As in :class:`LayerNorm2d`; there is no bias.

    Raises:
        TypeError: ``num_channels`` is not a size.
        RuntimeError: by ``forward``, as in :func:`fusedops.spatial_rms_norm`.

    Source: as for :func:`fusedops.spatial_rms_norm`.
    """

    def __init__(
        self,
        num_channels: int,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_channels, eps, elementwise_affine, False, device=device, dtype=dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.spatial_rms_norm(input, 1, self.weight, self.eps)
