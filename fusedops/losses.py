"""cross_entropy, and linear_cross_entropy for the last layer of a model."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args, overload

import torch

from fusedops import _arguments
from fusedops.ops import checks
from fusedops.ops.cross_entropy import ignored_rows, widened
from fusedops.ops.registration.autocast import in_autocast_dtype
from fusedops.ops.registration.autograd import eager_op, through_dispatcher

__all__ = ["cross_entropy", "linear_cross_entropy"]

_cross_entropy: Callable[..., tuple[torch.Tensor, torch.Tensor]] = eager_op(
    "cross_entropy", returned=2
)
_linear_cross_entropy: Callable[..., torch.Tensor] = through_dispatcher("linear_cross_entropy")
_linear_cross_entropy_losses: Callable[..., tuple[torch.Tensor, ...]] = through_dispatcher(
    "linear_cross_entropy_losses"
)

Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS = get_args(Reduction)
#: Reduction, ignore index, label smoothing, z-loss and soft cap.
_Settings = tuple[Reduction, int | None, float, float, float | None]
#: The class of torch 2.13 and later; before, nothing is an instance.
_OPTIONS: type | tuple[()] = getattr(torch.nn, "LinearCrossEntropyOptions", ())


@overload
def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = ...,
    *,
    ignore_index: int | None = ...,
    reduction: Reduction = ...,
    label_smoothing: float = ...,
    z_loss: float = ...,
    softcap: float | None = ...,
    return_lse: Literal[False] = ...,
    dim: int | None = ...,
) -> torch.Tensor: ...
@overload
def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = ...,
    *,
    ignore_index: int | None = ...,
    reduction: Reduction = ...,
    label_smoothing: float = ...,
    z_loss: float = ...,
    softcap: float | None = ...,
    return_lse: Literal[True],
    dim: int | None = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    return_lse: bool = False,
    dim: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    r"""Computes the cross entropy of logits and classes, without storing the log-probabilities.

    With the logits :math:`x` of a row, its class :math:`t`, :math:`\mathrm{lse} = \log \sum_j
    e^{x_j}` and the label smoothing :math:`\epsilon`, the row's loss is :math:`(1 - \epsilon)
    (\mathrm{lse} - x_t) + \epsilon (\mathrm{lse} - \mathrm{mean}(x))`. It is multiplied by
    ``weight[t]``, and then ``z_loss`` times :math:`\mathrm{lse}^2` is added, without that weight.
    The forward pass reads the logits once and keeps three numbers a row; the backward pass reads
    them again and writes the gradient. With a soft cap :math:`c`, :math:`c \tanh(x / c)` stands in
    place of :math:`x`.

    Args:
        input: logits, ``[classes]``, ``[N, classes]`` or ``[N, classes, d1, ...]``, or with ``dim``
            any other shape; float32, bfloat16, float16 or float64. Strides as in :func:`softmax`:
            classes that are adjacent in memory are read in place, whatever ``dim`` is, others cost
            a copy.
        target: the class of each row, of ``input``'s shape without the classes; int64, int32 or
            uint8. On CUDA the loss of a class out of range is NaN, on the CPU it is refused.
        weight: floating, ``[classes]``: a factor for the loss of each class; or None.
        ignore_index: rows of this class are not read; their loss is 0 and so is their gradient.
            None ignores no row.
        reduction: "none" gives the loss of each row, "sum" their sum, and "mean" the sum divided by
            the number of rows that are not ignored or, with ``weight``, by the sum of their
            weights; it is NaN where there are none.
        label_smoothing: in [0, 1]; only without ``weight``.
        z_loss: the factor of the squared lse, finite and >= 0: it keeps the lse near 0.
        softcap: bounds the logits to between ``-softcap`` and ``softcap``.
        return_lse: also return the lse.
        dim: the dimension of the classes; by default 1, or 0 for ``[classes]``.

    Returns:
        The loss, or (loss, lse) with the lse of each row in ``target``'s shape, 0 where the row is
        ignored. Both are differentiable. They are float64 for a float64 ``input`` and otherwise
        float32, also beside a 16-bit ``input``, for which torch rounds the loss to 16 bits.

    Raises:
        RuntimeError: a dtype that is not floating, class probabilities as ``target``, a ``target``
            of another dtype, shape or device than stated, or with a class out of range, a
            ``weight`` of another shape or device, a ``label_smoothing`` outside [0, 1] or beside
            ``weight``, a ``z_loss`` that is negative or not finite, a ``softcap`` that is not
            finite and above 0, a ``dim`` out of range.
        TypeError: an argument of another type.
        ValueError: an invalid ``reduction``.

    Source: :func:`torch.nn.functional.cross_entropy`; Szegedy et al., "Rethinking the Inception
    Architecture" (2015), section 7, for the smoothing; Chowdhery et al., "PaLM" (2022), section 5,
    for ``z_loss``; Gemma Team, "Gemma 2" (2024), section 2, for the soft cap.
    """
    settings = (reduction, ignore_index, label_smoothing, z_loss, softcap)
    loss, lse = _class_loss(input, target, weight, dim, settings)
    return (loss, lse) if return_lse else loss


def _class_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    dim: int | None,
    settings: _Settings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss, and the lse of each row."""
    function = "cross_entropy"
    reduction, ignore_index, smoothing, z_loss, softcap = _checked(function, settings)
    rows = _rows_of_classes(input, dim)
    _check_classes(function, target)
    if weight is not None and rows.dim() > 0:
        _check_class_weight(function, weight, rows.shape[-1:], "input", rows, smoothing)
    losses, lse = _cross_entropy(rows, target, ignore_index, smoothing, 1.0, softcap, False)
    counts = None
    if weight is not None:
        counts = _row_weights(weight, target, ignore_index, losses.dtype)
    elif reduction == "mean" and ignore_index is not None:
        counts = widened(target) != ignore_index
    return _reduced(losses, lse, counts, reduction, z_loss), lse


def _row_weights(
    weight: torch.Tensor, target: torch.Tensor, ignore_index: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the weight of each row's class, and 0 where the row is ignored."""
    # Any weight will do for a class out of range, whose loss is NaN.
    classes = widened(target).clamp(0, weight.shape[0] - 1)
    return weight.to(dtype)[classes].masked_fill(ignored_rows(target, ignore_index), 0)


def _reduced(
    losses: torch.Tensor,
    lse: torch.Tensor,
    counts: torch.Tensor | None,
    reduction: Reduction,
    z_loss: float,
) -> torch.Tensor:
    """Adds the z-loss to the losses, and reduces them. A mean divides by the sum of ``counts``, or
    by the number of rows if it is None. Counts that are not bool are weights of the rows, which
    multiply the losses too."""
    if counts is not None and counts.dtype != torch.bool:
        losses = losses * counts
    if z_loss != 0:
        losses = losses + z_loss * lse.square()
    if reduction == "none":
        # The backward pass reads the op's losses. The caller may write over a copy of them.
        return losses.clone() if losses.requires_grad else losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if counts is None else losses.sum() / counts.sum()


def _checked(function: str, settings: _Settings) -> _Settings:
    """Returns the settings with numbers converted. The op checks those that are not checked
    here."""
    reduction, ignore_index, smoothing, z_loss, softcap = settings
    if type(smoothing) is not float:
        smoothing = _arguments.number(function, "label_smoothing", smoothing)
    if type(z_loss) is not float:
        z_loss = _arguments.number(function, "z_loss", z_loss)
    if softcap is not None:
        softcap = _arguments.number(function, "softcap", softcap)
    if not 0 <= z_loss < math.inf:
        raise RuntimeError(f"{function}: z_loss is {z_loss:g}, wanted a finite number >= 0")
    if type(reduction) is not str or reduction not in _REDUCTIONS:
        _arguments.one_of("reduction", reduction, _REDUCTIONS)
    return reduction, ignore_index, smoothing, z_loss, softcap


def _rows_of_classes(input: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Returns ``input`` with the classes as its last dimension."""
    function = "cross_entropy"
    rank = _arguments.tensor(function, "input", input).dim()
    if dim is None:
        dim = min(rank - 1, 1)
    elif type(dim) is not int:
        try:
            dim = operator.index(dim)
        except TypeError:
            raise _arguments.wrong(function, "dim", dim, "a dimension of input or None") from None
    if rank == 0 or input.is_nested:  # the op refuses both
        return input
    checks.check_dim(function, input, dim)
    return input if dim % rank == rank - 1 else input.movedim(dim, -1)


def _check_classes(function: str, target: torch.Tensor) -> None:
    """Refuses class probabilities, which the op does not know."""
    if isinstance(target, torch.Tensor) and target.is_floating_point():
        raise RuntimeError(
            f"{function}: target is {target.dtype}, wanted classes of torch.int64, torch.int32 or "
            "torch.uint8; class probabilities are not supported: use "
            f"torch.nn.functional.{function}"
        )


def _check_strided(function: str, name: str, value: torch.Tensor) -> None:
    """Refuses nested tensors too, which may have the layout torch.strided."""
    tensor = _arguments.tensor(function, name, value)
    checks.check_plain(function, name, tensor)
    if tensor.layout != torch.strided:
        raise RuntimeError(
            f"{function}: {name} has layout {tensor.layout}, wanted torch.strided; make it with "
            ".to_dense()"
        )


def _check_class_weight(
    function: str,
    weight: torch.Tensor,
    classes: torch.Size,
    of: str,
    like: torch.Tensor,
    label_smoothing: float,
) -> None:
    """Checks that ``weight`` has the shape ``classes``, a number for each class of the argument
    named ``of``, and the device of ``like``, and that there is no label smoothing beside it."""
    _check_strided(function, "weight", weight)
    what = f"a factor for each class of {of}, {list(classes)}"
    checks.check_norm_parameter(function, "weight", weight, ("input", like), classes, what)
    if label_smoothing != 0:
        raise RuntimeError(
            f"{function}: label_smoothing is {label_smoothing:g} beside a weight, wanted 0: the "
            "smoothed loss of weighted classes is not supported; use "
            f"torch.nn.functional.{function}"
        )


def linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    reduction: Reduction = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    options: torch.nn.LinearCrossEntropyOptions | None = None,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> torch.Tensor:
    r"""Computes the cross entropy of a linear layer's results, without storing the logits of all
    rows at once.

    The result is that of ``cross_entropy(linear(input, linear_weight, linear_bias), target, ...)``.
    Chunks of rows are multiplied, one after the other, into one buffer: at most 192 rows on the CPU
    and 4096 on CUDA, fewer if their logits would exceed 512 MiB. With the reductions "mean" and
    "sum" the forward pass computes the gradients that autograd will need, while a chunk's logits
    are in the buffer; the backward pass multiplies them by the gradient of the loss. With "none",
    or a ``weight`` that requires grad, the backward pass computes the logits again. Ignored rows
    are not multiplied. The gradient of a 16-bit ``linear_weight`` is accumulated in float32 and
    rounded once. In float16 the gradients of a mean are rounded before they are divided by the
    number of rows, to keep the digits of small ones; those above 65504 / rows become infinite.
    Where ``linear_weight`` needs no gradient, as that of a frozen layer, a third of the work is
    left out; where nothing does, as under ``torch.no_grad``, two thirds are.

    A row's loss may differ in its last bits with the number of rows, as a product's elements do. A
    derivative of a gradient (``create_graph=True``, nested transforms, forward mode) holds the
    logits of all rows. On CUDA the call waits until the GPU has counted the rows that are not
    ignored, unless ``ignore_index`` is None; while a CUDA graph is captured, it does not wait, and
    multiplies ignored rows too.

    A ``linear_weight`` of more dimensions, ``[classes, d1, ..., dK, features]``, has several heads:
    each position of ``d1, ..., dK`` is a linear layer over the same ``input``, and all their losses
    are reduced together. One head is computed after the other, from slices of the weight that are
    not copied where the features are adjacent in memory. With "mean" and "sum", the gradient of
    ``input`` is kept for each head, until the backward pass adds them in float32 and rounds once.

    Args:
        input: ``[features]`` or ``[..., features]``, beside several heads ``[N, features]``;
            float32, bfloat16, float16 or float64.
        linear_weight: ``[classes, features]`` or ``[classes, d1, ..., dK, features]`` of
            ``input``'s dtype. Under ``torch.autocast`` both are converted, as for
            :func:`torch.nn.functional.linear`. It may be the weight of an embedding too.
        target: the class of each row, ``input``'s shape without the features, or ``[N, d1, ...,
            dK]``; int64, int32 or uint8. On CUDA the loss of a class out of range is NaN, on the
            CPU it is refused.
        linear_bias: ``[classes]`` or ``[classes, d1, ..., dK]`` of ``input``'s dtype, or None.
        weight: floating, ``[classes]``: a factor for the loss of each class; or None.
        options: a ``torch.nn.LinearCrossEntropyOptions`` or None. It changes nothing: the function
            chooses its chunks by itself, sums of 16-bit gradients over chunks are float32, and a
            backward pass may be repeated. Logits have ``input``'s dtype, as without options, while
            torch's chunks may have float32 ones; a chunk may have more rows than asked for.
        reduction, ignore_index, label_smoothing, z_loss, softcap: as in :func:`cross_entropy`.
            Unlike here, for torch's function an ``ignore_index`` of None means -100.

    Returns:
        The loss: a number or, where ``reduction`` is "none", ``target``'s shape; float64 for a
        float64 ``input`` and otherwise float32.

    Raises:
        RuntimeError: a dtype that is not floating, tensors of different dtypes or devices, a
            ``linear_weight``, ``linear_bias``, ``target`` or ``weight`` of another shape or dtype
            than stated, class probabilities, a class out of range, settings as in
            :func:`cross_entropy`.
        TypeError: an argument of another type.
        ValueError: an invalid ``reduction``.
        NotImplementedError: a DTensor among the tensors.

    Source: :func:`torch.nn.functional.linear_cross_entropy`; Hsu et al., "Liger Kernel" (2024),
    section 3.2, for chunks whose gradients are computed in the forward pass.
    """
    check_options("linear_cross_entropy", options)
    settings = (reduction, ignore_index, label_smoothing, z_loss, softcap)
    return _linear_loss(input, linear_weight, target, linear_bias, weight, settings)


def _linear_loss(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    settings: _Settings,
) -> torch.Tensor:
    """Returns the loss. An op that returns the loss of each row is called where ``reduction`` or
    the gradient of ``weight`` needs them, otherwise one that returns their sum."""
    function = "linear_cross_entropy"
    reduction, ignore_index, smoothing, z_loss, softcap = _checked(function, settings)
    _check_classes(function, target)
    _check_ignore_index(function, ignore_index)
    heads = _heads(_Layer(input, linear_weight, target, linear_bias))
    if weight is not None and _has_classes(linear_weight):
        of_weight = (linear_weight.shape[:1], "linear_weight", input)
        _check_class_weight(function, weight, *of_weight, smoothing)
    classes, dtype = heads.classes, checks.statistics_dtype(input.dtype)
    counts = None if weight is None else _row_weights(weight, classes, ignore_index, dtype)
    if reduction == "none" or (counts is not None and counts.requires_grad):
        losses, lse = heads.losses(ignore_index, smoothing, softcap)
        loss = _reduced(losses, lse, counts, reduction, z_loss)
        return loss.reshape(target.shape) if reduction == "none" else loss
    of_op = (ignore_index, smoothing, z_loss, softcap)
    if reduction == "sum":
        return heads.sum(counts, None, *of_op)
    scale, power = _inverse_of_sum(counts, classes, ignore_index, dtype)
    return heads.sum(counts, scale, *of_op) * power


def _has_classes(linear_weight: torch.Tensor) -> bool:
    """Whether ``linear_weight`` has at least one class; the op refuses others."""
    if not isinstance(linear_weight, torch.Tensor) or linear_weight.is_nested:
        return False
    return linear_weight.dim() > 1 and linear_weight.shape[0] > 0


def check_options(function: str, value: object) -> None:
    """Refuses what is no ``torch.nn.LinearCrossEntropyOptions``."""
    if value is not None and not isinstance(value, _OPTIONS):
        wanted = "a torch.nn.LinearCrossEntropyOptions, which torch 2.13 and later have, or None"
        raise _arguments.wrong(function, "options", value, wanted)


def _check_ignore_index(function: str, value: int | None) -> None:
    """Refuses a value that is no int of 64 bits: the target is compared with the value before the
    op can check it."""
    if value is None or (type(value) is int and -(2**63) <= value < 2**63):
        return
    try:
        is_index = -(2**63) <= operator.index(value) < 2**63
    except TypeError:
        is_index = False
    if not is_index:
        raise _arguments.wrong(function, "ignore_index", value, "an int of 64 bits or None")


class _Layer(NamedTuple):
    """A linear layer and what it is applied to: the first arguments of the ops."""

    input: torch.Tensor
    linear_weight: torch.Tensor
    target: torch.Tensor
    linear_bias: torch.Tensor | None


class _Heads(NamedTuple):
    """Linear layers over the same rows, whose losses are reduced together.

    classes: the class of each row or, of several heads, ``[rows, heads]``.
    are_several: whether ``classes`` has the second of these shapes.
    """

    layers: list[_Layer]
    classes: torch.Tensor
    are_several: bool = True

    def losses(
        self, ignore_index: int | None, label_smoothing: float, softcap: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns loss and lse for each of ``classes``."""
        settings = (ignore_index, label_smoothing, softcap)
        results = [_linear_cross_entropy_losses(*layer, *settings)[:2] for layer in self.layers]
        if not self.are_several:
            return results[0][0], results[0][1]
        losses, lse = (torch.stack(tensors, 1) for tensors in zip(*results, strict=True))
        return losses, lse

    def sum(
        self, counts: torch.Tensor | None, scale: torch.Tensor | None, *settings: object
    ) -> torch.Tensor:
        """Returns the sum of all losses, each times its number of ``counts``, times ``scale``."""
        if not self.are_several:
            return _linear_cross_entropy(*self.layers[0], counts, scale, *settings)
        of_heads = [None] * len(self.layers) if counts is None else counts.unbind(1)
        sums = [
            _linear_cross_entropy(*layer, weights, scale, *settings)
            for layer, weights in zip(self.layers, of_heads, strict=True)
        ]
        return torch.stack(sums).sum()


def _heads(layer: _Layer) -> _Heads:
    """Returns the heads: one for a matrix ``linear_weight``, otherwise one for each position of the
    dimensions between the classes and the features."""
    input, linear_weight, target, linear_bias = layer
    is_matrix = not isinstance(linear_weight, torch.Tensor) or linear_weight.dim() < 3
    if is_matrix or any(map(_is_never_taken, layer)):
        rows, classes = _flat_rows(input, target)
        flat = _Layer(rows, linear_weight, classes, linear_bias)
        return _Heads([flat], classes, are_several=False)
    _check_heads(layer)
    heads = math.prod(linear_weight.shape[1:-1])
    weights, classes = linear_weight.flatten(1, -2), target.flatten(1)
    biases = None if linear_bias is None else linear_bias.flatten(1)
    if heads == 0:
        # One head without rows: the op checks the arguments, and their gradients are zeros.
        bias = None if biases is None else biases.sum(1)
        empty = _Layer(input[:0], weights.sum(1), classes.reshape(0), bias)
        return _Heads([empty], empty.target, are_several=False)
    # The derivative of expand is one sum of the gradients of all heads, in float32 for 16 bits. If
    # each call got the same tensor, autograd would round each sum of two.
    rows_of = in_autocast_dtype(input).expand(heads, -1, -1).unbind()
    bias_of = [None] * heads if biases is None else biases.unbind(1)
    of_heads = (rows_of, weights.unbind(1), classes.unbind(1), bias_of)
    return _Heads(list(map(_Layer, *of_heads)), classes)


def _is_never_taken(value: object) -> bool:
    """Whether the op refuses ``value`` in any shape: a nested tensor or a DTensor. Views of these
    raise errors that do not name the argument."""
    return isinstance(value, torch.Tensor) and (value.is_nested or hasattr(value, "device_mesh"))


def _check_heads(layer: _Layer) -> None:
    """Checks the shapes and layouts of the arguments of several heads. The op checks all else."""
    function = "linear_cross_entropy"
    input = _arguments.tensor(function, "input", layer.input)
    _arguments.tensor(function, "target", layer.target)
    named = {name: tensor for name, tensor in layer._asdict().items() if tensor is not None}
    for name, tensor in named.items():
        _check_strided(function, name, tensor)
    checks.check_device(function, "target", layer.target, ("input", input))
    shape, rows = list(layer.linear_weight.shape), list(input.shape[:-1])
    checks.check(
        len(rows) == 1,
        f"{function}: input has shape {list(input.shape)}, wanted [N, features] beside a "
        f"linear_weight of shape {shape}; reshape it, and target as well",
    )
    checks.check(
        shape[0] > 0 and shape[-1] == input.shape[1],
        f"{function}: linear_weight has shape {shape}, wanted [classes, d1, ..., "
        f"{input.shape[1]}], at least one class and the features of input",
    )
    for name, wanted in (("target", rows + shape[1:-1]), ("linear_bias", shape[:-1])):
        if name in named and list(named[name].shape) != wanted:
            raise RuntimeError(
                f"{function}: {name} has shape {list(named[name].shape)}, wanted {wanted} beside "
                f"a linear_weight of shape {shape}"
            )


def _flat_rows(input: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``input`` as [rows, features], and the class of each row."""
    function = "linear_cross_entropy"
    _arguments.tensor(function, "input", input)
    _check_strided(function, "target", target)
    checks.check_device(function, "target", target, ("input", input))
    if input.is_nested or input.layout != torch.strided or input.dim() in (0, 2):
        return input, target  # a matrix is what the op takes; it refuses the others
    rows = list(input.shape[:-1])
    if list(target.shape) != rows:
        raise RuntimeError(
            f"{function}: target has shape {list(target.shape)}, wanted that of input without its "
            f"features, {rows}"
        )
    return input.reshape(target.numel(), input.shape[-1]), target.reshape(-1)


def _inverse_of_sum(
    weights: torch.Tensor | None,
    target: torch.Tensor,
    ignore_index: int | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns two numbers whose product is 1 / (the sum of the weights), the second a power of two.
    Without weights each row counts 1, and an ignored one 0.

    The op multiplies by the first before it rounds gradients, and autograd by the second, which
    rounds nothing. The first times the largest weight is from 1 to 2: with all of 1 / sum in the
    op, float16 gradients of the logits would underflow. The first is infinite if there are no rows:
    the loss is then NaN, and the gradients are the op's zeros.
    """
    if weights is None:
        total = rows = (~ignored_rows(target, ignore_index)).sum().to(dtype)
    else:
        total = weights.sum().to(dtype)
        none = weights.new_zeros(1)  # amax() needs an element
        largest = torch.cat([weights.abs().flatten(), none]).amax()
        rows = total / torch.where(largest > 0, largest, 1.0).to(dtype)
    # As by torch.frexp, which torch.onnx cannot export; a sum of 0 has the exponent -64.
    exponent = rows.abs().log2().floor().clamp(min=-65) + 1
    power = torch.exp2(-exponent)
    return (total * power).reciprocal(), power


# torch.fx.symbolic_trace records these as single nodes: they branch on values that no proxy has.
for _name in ("_class_loss", "_linear_loss"):
    torch.fx.wrap(_name)
