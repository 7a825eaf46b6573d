"""May a site that could be replaced be replaced? Correctness is settled before this is asked.

With `fuse="profitable"` a site is replaced where the op, and what its presence costs around it, is
measured to take less than what Inductor makes of the site. An op of ours is a wall to Inductor's
fusion: a pointwise neighbour then writes what Inductor would have kept in registers, and the op
reads it; so is a mask that Inductor would have computed on its way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from fusedops import config
from fusedops.graph.ir import dialect
from fusedops.graph.ir.dialect import users, value
from fusedops.graph.policy import costs
from fusedops.graph.policy.costs import INFERENCE, TRAINING, Size, Table
from fusedops.graph.policy.machine import Machine
from fusedops.graph.rules.rule import Match

_CAUSAL, _ADDITIVE = "masked_softmax[causal]", "masked_softmax[additive]"
_DROPOUT = "softmax_dropout[causal]"
#: What ops are measured as, where that is not their name; the first that a table has counts.
_MEASURED_AS = {
    "masked_softmax": (_ADDITIVE,),
    "masked_softmax_dropout": (_DROPOUT,),
    **{f"stack_{op}": (op,) for op in ("softmax", "log_softmax", "layer_norm")},
}
MEASURED_OPS = (
    "softmax",
    "log_softmax",
    _ADDITIVE,
    _DROPOUT,
    "layer_norm",
    "std_norm",
    "rms_norm",
    "add_layer_norm",
    "add_rms_norm",
)

#: What we must be faster by: two measurements of the same code differ by so much.
MARGIN = 0.03

#: Below this many elements a call costs more than its kernel, where no table says so.
_FEW_ELEMENTS = 2**15
_MANY_FEATURES = 2**18


@dataclass(frozen=True)
class Figures:
    """The measurements that decided a site, scaled from the measured size to the site's.

    mode: "inference", or "training": forward and backward pass together.
    fusedops_ms, inductor_ms: of the site itself.
    passes_ms: what its neighbours read and write more because our op stands between them.
    rows, cols: the nearest size that was measured.
    table: which table has it, of how many threads, and why that one.
    """

    mode: str
    fusedops_ms: float
    passes_ms: float
    inductor_ms: float
    rows: int
    cols: int
    table: str

    @property
    def ours_ms(self) -> float:
        """All that our op costs."""
        return self.fusedops_ms + self.passes_ms


@dataclass(frozen=True)
class Verdict:
    """Why the active settings leave a site alone, or None; and what was compared, if anything."""

    refusal: str | None
    figures: Figures | None = None


def judge(rule: str, match: Match) -> Verdict:
    """Whether the active settings have this site replaced."""
    mode = config.active().fuse_for(rule)
    if mode == "never":
        return Verdict('config: fuse="never"')
    return Verdict(None) if mode == "always" else _profitable(match)


def leaves_encoder_layer(result: torch.Tensor) -> bool:
    """Whether PyTorch's fused encoder layer of inference is better than what it does one by one.

    On a CPU, one thread, the calls reach 0.6 of its speed at 8 tokens of 64 features, 0.9 at 128
    of 128, 1.0 at 1024 of 256, and with a padding mask 1.2.
    """
    sizes = dialect.hints(result)
    small = sizes is None or math.prod(sizes) < _MANY_FEATURES
    return small and config.active().fuse_for("expand") == "profitable"


def _profitable(match: Match) -> Verdict:
    if _is_never_materialised(match):
        reason = "all that becomes of it is gathered or reduced: Inductor never writes it out"
        return Verdict(reason)
    if _becomes_sdpa(match):
        return Verdict("Inductor runs attention without a mask as scaled_dot_product_attention")
    size = _size(match)
    if size is None:
        return Verdict(None)
    machine = costs.here(value(match.call.node).device)
    found = (_figures(match, table, size, machine) for table in costs.tables_for(machine))
    figures = next(filter(None, found), None)
    if figures is None:
        return Verdict(_probably_slower(match, size))
    return Verdict(_slower(figures), figures)


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


def _figures(match: Match, table: Table, size: Size, machine: Machine) -> Figures | None:
    """What the table says of the site; None where it does not know the op."""
    mode = TRAINING if _is_trained(match) else INFERENCE
    found = [table.cost(name, mode, size) for name in _measured_as(match)]
    cost = next(filter(None, found), None)
    if cost is None:
        return None
    inductor = cost.inductor
    if match.op.startswith("add_") and match.call.arguments["p"]:  # the table has it without
        inductor += _dropout(table, size)
    directions = 2 if mode == TRAINING else 1
    return Figures(
        mode=mode,
        fusedops_ms=cost.ours,
        passes_ms=directions * _bytes_at_the_wall(match) * cost.ms_per_byte,
        inductor_ms=inductor,
        rows=cost.rows,
        cols=cost.cols,
        table=f"{table}; {table.fit(machine)}",
    )


def _measured_as(match: Match) -> tuple[str, ...]:
    """The names under which a table may have the op, the closest first."""
    names = _MEASURED_AS.get(match.op, (match.op,))
    is_causal = match.op == "masked_softmax" and match.call.arguments.get("causal")
    return (_CAUSAL, *names) if is_causal else names


def _dropout(table: Table, size: Size) -> float:
    """Milliseconds that Inductor takes for the random numbers of a tensor: what it takes longer for
    a softmax with dropout than for one without. Ours draws them for next to nothing beside that."""
    names = (_DROPOUT,), (_CAUSAL, _ADDITIVE)
    dropped, plain = (
        next(filter(None, (table.cost(name, TRAINING, size) for name in each)), None)
        for each in names
    )
    return max(0.0, dropped.inductor - plain.inductor) if dropped and plain else 0.0


def _slower(figures: Figures) -> str | None:
    """Why not, where we are not measured to be faster."""
    ours, inductor = figures.ours_ms, figures.inductor_ms
    if ours <= (1 - MARGIN) * inductor:
        return None
    times = f"{as_time(inductor)} against {as_time(ours)}"
    if ours <= inductor:
        return f"too little to be sure of: Inductor is measured at {times}"
    return f"Inductor is measured to be faster: {times}"


def as_time(ms: float) -> str:
    """Three digits, with a unit that makes them readable."""
    return f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms"


def _probably_slower(match: Match, size: Size) -> str | None:
    """Where nothing was measured: replace what saves a pass, or has no neighbour to fuse with."""
    if size.elements < _FEW_ELEMENTS:
        return f"too small to pay: {size.elements} elements"
    if len(match.fused_nodes) > 1 or not _bytes_at_the_wall(match):
        return None
    return "Inductor fuses it with its neighbours, and no measurement says that this is slower"


def _is_trained(match: Match) -> bool:
    inputs = (value(node) for node in match.call.node.all_input_nodes)
    differentiated = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    return bool(differentiated) and torch.is_grad_enabled()


def _bytes_at_the_wall(match: Match) -> int:
    """What is read or written only because the op is a wall."""
    ours = {match.call.node, *match.results, *match.fused_nodes}
    inputs = {node for old in ours for node in old.all_input_nodes} - ours
    before = [node for node in inputs if dialect.is_pointwise(node)]
    after = [user for old in match.results for user in dialect.readers(old) if user not in ours]
    fused = [user for user in after if dialect.is_pointwise(user)]
    # Read here; and written, unless something else wants it in memory anyway.
    reads_and_writes = sum((1 + ours.issuperset(users(node))) * _bytes(node) for node in before)
    behind = bool(fused) * (1 + (len(fused) == len(after)))
    return reads_and_writes + behind * _bytes(next(iter(match.results)))


def _bytes(node: Node) -> int:
    """The memory of a tensor; of one that is broadcast what is really there."""
    tensor = value(node)
    sizes = dialect.hints(tensor) if isinstance(tensor, torch.Tensor) else None
    if sizes is None:
        return 0
    held = [size for size, stride in zip(sizes, tensor.stride(), strict=True) if stride != 0]
    itemsize: int = tensor.dtype.itemsize
    return math.prod(held) * itemsize
