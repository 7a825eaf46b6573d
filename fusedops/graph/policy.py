"""May a site that could be replaced be replaced? Correctness is settled before this is asked.

With `fuse="profitable"` a site is replaced where the op, and what its presence costs around it, is
measured to take no longer than what Inductor makes of the site. An op of ours is a wall to
Inductor's fusion: a pointwise neighbour then writes what Inductor would have kept in registers, and
the op reads it.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fusedops import config
from fusedops.graph import costs, dialect
from fusedops.graph.costs import Size
from fusedops.graph.dialect import users, value
from fusedops.graph.rule import Match

#: Rows of the table of costs: their names, by op where they differ.
_MEASURED_AS = {
    "masked_softmax_dropout": "softmax_dropout",
    **{f"stack_{op}": op for op in ("softmax", "log_softmax", "layer_norm")},
}
MEASURED_OPS = ("softmax", "log_softmax", "masked_softmax", "softmax_dropout", "layer_norm")
MEASURED_OPS += ("std_norm", "rms_norm", "add_layer_norm", "add_rms_norm")

#: Below this many elements a call costs more than its kernel, where no table says so.
_FEW_ELEMENTS = 2**15
_MANY_FEATURES = 2**18


def refusal(rule: str, match: Match) -> str | None:
    """Why the active settings leave this site alone, or None."""
    mode = config.active().fuse_for(rule)
    if mode == "never":
        return 'config: fuse="never"'
    return None if mode == "always" else _unprofitable(match)


def leaves_encoder_layer(result: torch.Tensor) -> bool:
    """Whether PyTorch's fused encoder layer of inference is better than what it does one by one.

    On a CPU, one thread, the calls reach 0.6 of its speed at 8 tokens of 64 features, 0.9 at 128
    of 128, 1.0 at 1024 of 256, and with a padding mask 1.2.
    """
    sizes = dialect.hints(result)
    small = sizes is None or math.prod(sizes) < _MANY_FEATURES
    return small and config.active().fuse_for("expand") == "profitable"


def _unprofitable(match: Match) -> str | None:
    if _is_never_materialised(match):
        return "all that becomes of it is gathered or reduced: Inductor never writes it out"
    if _becomes_sdpa(match):
        return "Inductor runs attention without a mask as scaled_dot_product_attention"
    device, size = value(match.call.node).device, _size(match)
    if size is None:
        return None
    if costs.has_table(device):
        return _slower(match, device, size)
    return _probably_slower(match, size)


def _is_never_materialised(match: Match) -> bool:
    """Whether a softmax feeds gathers and reductions alone, as log_softmax in cross entropy."""
    if not match.op.endswith("softmax"):
        return False
    results = [user for result in match.results for user in users(result)]
    return bool(results) and all(map(dialect.ends_in_reduction, results))


def _becomes_sdpa(match: Match) -> bool:
    """Whether a softmax without a mask stands between two matrix products: Inductor's pass
    fuse_attention replaces all three. On a CPU its attention has no dropout."""
    arguments = match.call.arguments
    hidden = [arguments.get(name) for name in ("mask", "bias", "causal")]
    if not match.op.startswith(("softmax", "masked_softmax")) or any(hidden):
        return False
    device = value(match.call.node).device.type
    if match.op == "masked_softmax_dropout" and device == "cpu":
        return False
    result = next(iter(match.results))
    return dialect.is_product(arguments["input"]) and dialect.feeds_products(result)


def _size(match: Match) -> Size | None:
    """Rows and columns of the result, guessed where they are symbols; None where that fails."""
    result = value(next(iter(match.results)))
    shape = dialect.hints(result)
    if shape is None:
        return None
    arguments = match.call.arguments
    if "inputs" in arguments:  # stacked: a row is one input's
        row_shape = dialect.hints(value(arguments["inputs"][0])) or []
    else:
        row_shape = shape
    if "normalized_shape" in arguments:
        cols = math.prod(row_shape[len(row_shape) - len(arguments["normalized_shape"]) :])
    else:
        cols = row_shape[arguments.get("dim", -1)] if row_shape else 1
    return Size(math.prod(shape) // max(cols, 1), cols, result.dtype)


def _slower(match: Match, device: torch.device, size: Size) -> str | None:
    """Whether the table of the device has it so."""
    op = _MEASURED_AS.get(match.op, match.op)
    directions = ["forward", "backward"] if _is_trained(match) else ["forward"]
    found = [costs.cost(device, op, direction, size) for direction in directions]
    found = [cost for cost in found if cost is not None]
    if not found:
        return None
    passes = _passes(match) * size.elements * size.dtype.itemsize
    ours = sum(cost.ours + passes * cost.ms_per_byte for cost in found)
    inductor = sum(cost.inductor for cost in found)
    if op.startswith("add_") and match.call.arguments["p"]:  # the table has it without
        inductor += _dropout(device, size)
    if ours <= inductor:
        return None
    return f"Inductor is measured to be faster: {_time(inductor)} against {_time(ours)}"


def _dropout(device: torch.device, size: Size) -> float:
    """Milliseconds that Inductor takes for the random numbers of a tensor: what it takes longer for
    a softmax with dropout than for one without. Ours draws them for next to nothing beside that."""
    ops = ("softmax_dropout", "masked_softmax")
    dropped, plain = (costs.cost(device, op, "forward", size) for op in ops)
    return max(0.0, dropped.inductor - plain.inductor) if dropped and plain else 0.0


def _time(ms: float) -> str:
    return f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


def _probably_slower(match: Match, size: Size) -> str | None:
    """Where nothing was measured: replace what saves a pass, or has no neighbour to fuse with."""
    if size.elements < _FEW_ELEMENTS:
        return f"too small to pay: {size.elements} elements"
    if len(match.swallowed) > 1 or not _passes(match):
        return None
    return "Inductor fuses it with its neighbours, and no measurement says that this is slower"


def _is_trained(match: Match) -> bool:
    inputs = (value(node) for node in match.call.node.all_input_nodes)
    differentiated = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    return bool(differentiated) and torch.is_grad_enabled()


def _passes(match: Match) -> int:
    """How often a tensor of the result's size is read or written only because the op is a wall."""
    ours = {match.call.node, *match.results, *match.swallowed}
    result = next(iter(match.results))
    inputs = {node for old in ours for node in old.all_input_nodes} - ours
    before = [node for node in inputs if _is_as_large(node, result) and dialect.is_pointwise(node)]
    after = [user for old in match.results for user in dialect.readers(old) if user not in ours]
    fused = [user for user in after if dialect.is_pointwise(user)]
    # Read here; and written, unless something else wants it in memory anyway.
    reads_and_writes = sum(1 + ours.issuperset(users(node)) for node in before)
    return reads_and_writes + bool(fused) * (1 + (len(fused) == len(after)))


def _is_as_large(node: Node, result: Node) -> bool:
    """Not a mask, a weight, or whatever else is broadcast."""
    tensor = value(node)
    if not isinstance(tensor, torch.Tensor):
        return False
    own, full = dialect.hints(tensor), dialect.hints(value(result))
    return own is not None and full is not None and 2 * math.prod(own) >= math.prod(full)
