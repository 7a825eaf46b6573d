"""Decides whether a site should be replaced, which is a softmax, norm, cross entropy or dropout
that an op can replace correctly.

With `fuse="profitable"` a site is replaced if the op, plus the memory traffic that it adds around
the site, is measured to take less time than Inductor's code for the site. The traffic arises
because Inductor cannot fuse across our op: a pointwise call before the op has to write to memory
what Inductor would have kept in registers. The same holds for a mask that Inductor would have
computed inside its kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from fusedops import config
from fusedops.graph.analysis import storages
from fusedops.graph.analysis.calls import kind_of
from fusedops.graph.analysis.nodes import users
from fusedops.graph.analysis.steps import upstream
from fusedops.graph.analysis.values import hints, value
from fusedops.graph.policy import costs, estimation
from fusedops.graph.policy.attention import becomes_sdpa
from fusedops.graph.policy.costs import INFERENCE, TRAINING, Cost, Size, Table
from fusedops.graph.policy.machine import Machine
from fusedops.graph.policy.traffic import ends_in_reduction, is_pointwise, readers
from fusedops.graph.rule import Match, OpCall, viewed

_CAUSAL, _ADDITIVE = "masked_softmax[causal]", "masked_softmax[additive]"
#: The name that tables have for a softmax whose mask Inductor computes from positions, in its
#: kernel.
_COMPUTED = "masked_softmax[computed]"
_DROPOUT = "softmax_dropout[causal]"
#: How many times as long as a dropout one of a relu takes in Inductor's code for a CPU, where both
#: write a bool for each element: 38 ns an element in place of 21 on a Sapphire Rapids.
_DROPOUT_OF_RELU = 1.8
_COMPARISONS = ("lt", "le", "gt", "ge")
#: SDPA needs no memory for scores. If they have more bytes than this, that counts more than time;
#: training keeps those of each layer.
_MOST_SCORES = {INFERENCE: 2**28, TRAINING: 2**26}
#: The name that tables have for a cross entropy whose backward pass cannot write over the logits.
_KEPT_LOGITS = "cross_entropy[kept]"

NEVER_MATERIALISED = "its result is only gathered or reduced: Inductor never materialises it"
BECOMES_SDPA = "Inductor runs this attention as scaled_dot_product_attention"

#: fusedops must be faster by this share, since two measurements of the same code differ by up to
#: 3%.
MARGIN = 0.03
#: Attention must be faster than SDPA by this share. SDPA keeps no probabilities for the backward
#: pass, which reads them from memory in a model: attention of ViT that `tune` measures to be 5 %
#: faster than SDPA takes as long in a training step.
MARGIN_OVER_SDPA = 0.1

#: A site without measurements is not replaced if it has fewer elements than this, because the call
#: of the op would take longer than its kernel.
_FEW_ELEMENTS = 2**15
#: If its result has at least this many elements, PyTorch's fused encoder layer is not faster than
#: its decomposition (see `leaves_encoder_layer` for the measurements).
_MANY_FEATURES = 2**18


@dataclass(frozen=True)
class Estimate:
    """The measurements that decided a site, scaled from the measured size to the site's.

    mode: "inference", or "training" for forward and backward pass together.
    fusedops_ms, inductor_ms: the times of the site itself.
    passes_ms: the time of the additional reads and writes around our op, because Inductor cannot
        fuse across it, or because a result is copied to have eager's strides.
    call_ms: the time of a call alone, which the times above do not contain. What was measured did.
    rows, cols: the nearest measured size.
    table: the table that was used, its number of threads, and why it was chosen.
    products: whether the times include the matrix products around a softmax.
    """

    mode: str
    fusedops_ms: float
    passes_ms: float
    inductor_ms: float
    call_ms: float
    rows: int
    cols: int
    table: str
    products: bool = False

    @property
    def ours_ms(self) -> float:
        """The total time with our op."""
        return self.fusedops_ms + self.passes_ms


@dataclass(frozen=True)
class Decision:
    """The decision about a site.

    refusal: why the site is not replaced; None if it is.
    estimate: the measurements that were compared; None if there were none.
    """

    refusal: str | None
    estimate: Estimate | None = None


def decide(rule: str, match: Match, copied_bytes: int = 0) -> Decision:
    """Decides whether a site is replaced with the active settings. `copied_bytes` is the number of
    bytes that the replacement reads and writes to give its results eager's strides."""
    mode = config.active().fuse_for(rule)
    if mode == "never":
        return Decision(f'config: fuse="{config.active().fuse}"')
    return Decision(None) if mode == "always" else _profitable(match, copied_bytes)


def leaves_encoder_layer(result: torch.Tensor) -> bool:
    """Returns whether PyTorch's fused encoder layer for inference stays as it is, given its result.
    With `fuse="profitable"` it stays where its decomposition is slower.

    Measured on one CPU thread, the decomposition reaches 0.6 of the fused layer's speed for 8
    tokens of 64 features, 0.9 for 128 tokens of 128, 1.0 for 1024 tokens of 256, and 1.2 for these
    with a padding mask.
    """
    sizes = hints(result)
    small = sizes is None or math.prod(sizes) < _MANY_FEATURES
    return small and config.active().fuse_for("expand") == "profitable"


def _profitable(match: Match, copied_bytes: int) -> Decision:
    """Decides about a site with `fuse="profitable"`. A softmax is refused if Inductor never writes
    its result to memory. For other sites the best table that has the op decides, or a heuristic if
    none has it. A site of unknown size is replaced, unless Inductor runs it as SDPA."""
    if _is_never_materialised(match):
        return Decision(NEVER_MATERIALISED)
    size = _size(match)
    around = _barrier_bytes(match) + copied_bytes
    if becomes_sdpa(match, _is_trained(match)):
        decision = _beside_sdpa(match, size, around)
        if decision is not None:
            return decision
    if size is None:
        return Decision(None)
    estimate = _best_estimate(match, size, around)
    if estimate is None:
        return Decision(_probably_slower(match, size, copied_bytes))
    return Decision(_slower(estimate), estimate)


def _beside_sdpa(match: Match, size: Size | None, around: int) -> Decision | None:
    """Decides about a softmax that Inductor runs as SDPA, with the matrix products around it. SDPA
    stays if it is not measured, or if its scores would need much memory. Returns None if it is not
    measured but adds a mask, in which case the softmax alone decides."""
    if size is None or size.elements * size.dtype.itemsize > _MOST_SCORES[_mode(match)]:
        return Decision(BECOMES_SDPA)
    estimate = _best_estimate(match, size, around, products=True)
    if estimate is None:
        is_masked = match.call.arguments.get("mask") is not None
        return None if is_masked else Decision(BECOMES_SDPA)
    pays = _pays(estimate, MARGIN_OVER_SDPA)
    return Decision(None if pays else BECOMES_SDPA, estimate)


def _best_estimate(
    match: Match, size: Size, around: int, products: bool = False
) -> Estimate | None:
    """Returns the estimate by the best table that has the op, or None if none has it. With
    `products` it is that of attention as a whole. Then only tables for this machine count, because
    the speed of matrix products in bfloat16 differs from one processor to the next."""
    machine = costs.here(value(match.call.node).device)
    estimation.ensure_table(machine)
    tables = (t for t in costs.tables_for(machine) if t.is_for(machine) or not products)
    estimates = (_estimate(match, table, size, machine, around, products) for table in tables)
    return next(filter(None, estimates), None)


def _is_never_materialised(match: Match) -> bool:
    """Returns whether only gathers and reductions use a softmax, as in cross entropy. Inductor then
    computes its elements inside their kernels."""
    if not match.op.endswith("softmax"):
        return False
    results = [user for result in match.results for user in users(result)]
    return bool(results) and all(map(ends_in_reduction, results))


def _size(match: Match) -> Size | None:
    """Returns the number of rows and columns of the site's result, or of the logits if the site is
    a cross entropy. Symbols have their values at capture. Returns None if a symbol had no value."""
    # The logits count for a cross entropy, since its result is much smaller.
    is_loss = match.op == "cross_entropy"
    result = _rows_of_classes(match) if is_loss else value(next(iter(match.results)))
    shape = hints(result)
    if shape is None:
        return None
    if match.order is not None:
        shape = [shape[dim] for dim in match.order]
    arguments = match.call.arguments
    if "inputs" in arguments:  # the rows of a stack are those of its inputs
        row_shape = hints(value(arguments["inputs"][0])) or []
    else:
        row_shape = shape
    if "normalized_shape" in arguments:
        # The shape may be a node, since torch.fx records x.shape[-1:] as one.
        row = value(arguments["normalized_shape"])
        cols = math.prod(row_shape[len(row_shape) - len(row) :])
    else:
        cols = row_shape[arguments.get("dim", -1)] if row_shape else 1
    return Size(math.prod(shape) // max(cols, 1), cols, result.dtype)


def _rows_of_classes(match: Match) -> torch.Tensor:
    """Returns the recorded value of a cross entropy's logits as the op gets them, which is with the
    classes in the last dimension."""
    input, logits = match.call.input, value(viewed(match.call.input))
    rows: torch.Tensor = logits.permute(input.args[1]) if isinstance(input, OpCall) else logits
    return rows


def _estimate(
    match: Match, table: Table, size: Size, machine: Machine, around: int, products: bool
) -> Estimate | None:
    """Returns the table's measurements for the site, with the products around it or without, or
    None if the op is not in the table. `around` is the number of bytes that are read and written
    around the op in one pass."""
    mode = _mode(match)
    if products:
        cost = table.cost(costs.ATTENTION, mode, size)
    elif match.op.startswith("masked_softmax"):
        cost = _masked_cost(match, table, mode, size)
    else:
        cost = _cost(match, table, mode, size)
    if cost is None:
        return None
    directions = 2 if mode == TRAINING else 1
    return Estimate(
        mode=mode,
        fusedops_ms=cost.ours,
        passes_ms=directions * around * cost.ms_per_byte,
        inductor_ms=cost.inductor,
        call_ms=cost.call,
        rows=cost.rows,
        cols=cost.cols,
        table=f"{table}; {table.fit(machine)}",
        products=products,
    )


def _cost(match: Match, table: Table, mode: str, size: Size) -> Cost | None:
    """Returns the cost of a site that is not a masked softmax, or None if the table has none."""
    op = match.op.removeprefix("stack_")
    if op == "cross_entropy" and mode == TRAINING and _keeps_logits(match):
        op = _KEPT_LOGITS
    if op == "dropout":
        return _dropout_alone(match, table, size)
    cost = table.cost(op, mode, size)
    # Tables have residual norms without dropout. In our op its random numbers take little time.
    if cost and op.startswith("add_") and match.call.arguments["p"]:
        dropout = _dropout(table, size)
        return replace(cost, inductor=cost.inductor + dropout.inductor) if dropout else cost
    return cost


def _masked_cost(match: Match, table: Table, mode: str, size: Size) -> Cost | None:
    """Returns the cost of a masked softmax, or None if the table has none. Our time depends on
    whether the softmax is causal, Inductor's on whether it computes the mask in its kernel."""
    causal = bool(match.call.arguments.get("causal"))
    measured = table.cost(_CAUSAL, mode, size) if causal else None
    measured = measured or table.cost(_ADDITIVE, mode, size)
    if measured is None:
        return None
    inductors = table.cost(_COMPUTED, mode, size) if _is_mask_computed(match) else None
    cost = replace(measured, inductor=(inductors or measured).inductor)
    if match.op != "masked_softmax_dropout":
        return cost
    dropout = _dropout(table, size)
    if dropout is None:
        return cost
    # Our op draws no numbers for hidden scores, which are half of a causal softmax's.
    ours = dropout.ours / 2 if causal else dropout.ours
    return replace(cost, inductor=cost.inductor + dropout.inductor, ours=cost.ours + ours)


def _is_mask_computed(match: Match) -> bool:
    """Returns whether the graph computes the mask from positions, which it compares."""
    mask = match.call.arguments.get("mask")
    calls = match.mask_calls if mask is None else match.mask_calls | upstream(viewed(mask), set())
    return any(kind_of(call) in _COMPARISONS for call in calls)


def _dropout(table: Table, size: Size) -> Cost | None:
    """Returns what dropout takes beside what reads or writes its elements anyway, which is mostly
    its random numbers, or None if the table does not have it. A table has dropout of a causal
    softmax, in which our op draws half of the numbers."""
    dropped, plain = (table.cost(op, TRAINING, size) for op in (_DROPOUT, _CAUSAL))
    if dropped is None or plain is None:
        return None
    inductor, ours = dropped.inductor - plain.inductor, 2 * (dropped.ours - plain.ours)
    return replace(plain, inductor=max(0.0, inductor), ours=max(0.0, ours))


def _dropout_alone(match: Match, table: Table, size: Size) -> Cost | None:
    """Returns the cost of a dropout that no softmax or norm takes in, or None if the table has
    none."""
    cost = _dropout(table, size)
    if cost is None or not match.call.arguments["relu"]:
        return cost
    return replace(cost, inductor=_DROPOUT_OF_RELU * cost.inductor)


def _pays(estimate: Estimate, margin: float) -> bool:
    """Returns whether fusedops is measured to be faster by at least this share of what was
    measured."""
    saved = estimate.inductor_ms - estimate.ours_ms
    return saved >= margin * (estimate.inductor_ms + estimate.call_ms)


def _slower(estimate: Estimate) -> str | None:
    """Returns why a site is not replaced, or None if that pays."""
    if _pays(estimate, MARGIN):
        return None
    ours, inductor = estimate.ours_ms, estimate.inductor_ms
    times = f"{as_time(inductor)} against {as_time(ours)}"
    if ours <= inductor:
        return f"within measurement error: Inductor is measured at {times}"
    return f"Inductor is measured to be faster: {times}"


def as_time(ms: float) -> str:
    """Returns a time with three digits, in microseconds, milliseconds or seconds."""
    if ms < 1:
        return f"{ms * 1e3:.3g} us"
    return f"{ms:.3g} ms" if ms < 1e3 else f"{ms / 1e3:.3g} s"


def _probably_slower(match: Match, size: Size, copied_bytes: int) -> str | None:
    """Returns why a site without measurements is not replaced, or None. A cross entropy is replaced
    in inference, and in training if its gradient can be written over the logits. Another site is
    replaced if it is not small, needs no copy, and either has several calls, so that the op saves
    passes over memory, or has no neighbour with which Inductor could fuse it."""
    if size.elements < _FEW_ELEMENTS:
        return f"too small to pay: {size.elements} elements"
    if match.op == "cross_entropy":
        return _keeps_logits(match) if _is_trained(match) else None
    if copied_bytes:
        return "eager's strides take a copy, and no measurement says that this pays"
    if len(match.nodes) > 1 or not _barrier_bytes(match):
        return None
    return "Inductor fuses it with its neighbours, and no measurement says that this is slower"


def _keeps_logits(match: Match) -> str | None:
    """Returns why the backward pass of a cross entropy has to allocate a gradient as large as the
    logits, which costs more than its kernel. Returns None if the gradient can be written over the
    logits, because the graph computes them and nothing needs them later."""
    logits = viewed(match.call.input)
    holders = storages.holders_of(logits)
    if not all(holder.op.startswith("call") for holder in holders):
        return "the logits are an input of the graph: compile the model with its loss"
    if storages.is_returned(logits):
        return "the logits are returned: compile the step with its loss"
    if not _rows_of_classes(match).is_contiguous():
        return "the loss reads a part of the logits: shift the labels instead, as transformers does"
    ours = {*holders, *match.nodes}
    others = (user for holder in holders for user in users(holder) if user not in ours)
    if any(_is_differentiated(user) for user in others):
        return "something else is differentiated with respect to the logits"
    return None


def _is_differentiated(node: Node) -> bool:
    """Returns whether a node's result requires grad."""
    result = value(node)
    return isinstance(result, torch.Tensor) and result.requires_grad


def _mode(match: Match) -> str:
    return TRAINING if _is_trained(match) else INFERENCE


def _is_trained(match: Match) -> bool:
    """Returns whether an input of the site requires grad, and autograd is on."""
    inputs = match.call.node.all_input_nodes
    return any(map(_is_differentiated, inputs)) and torch.is_grad_enabled()


def _barrier_bytes(match: Match) -> int:
    """Returns the bytes that are read or written only because Inductor cannot fuse across the
    op."""
    ours = {*match.results, *match.nodes, *match.mask_calls}
    inputs = {node for old in ours for node in old.all_input_nodes} - ours
    before = [node for node in inputs if is_pointwise(node)]
    after = [user for old in match.results for user in readers(old) if user not in ours]
    fused = [user for user in after if is_pointwise(user)]
    # Without the op, an input that Inductor fuses would not be read from memory, and if nothing
    # else uses it, not written to memory either.
    input_bytes = sum((1 + ours.issuperset(users(node))) * _bytes(node) for node in before)
    # Nor would the users that Inductor fuses read the result from memory. If it fuses all of them,
    # the result would not be written either.
    result_passes = bool(fused) * (1 + (len(fused) == len(after)))
    result_bytes = result_passes * _bytes(next(iter(match.results)))
    return input_bytes + result_bytes + _expanded_bytes(match)


def _expanded_bytes(match: Match) -> int:
    """Returns the bytes that are written and read because a weight or bias is expanded to the shape
    of a row. The dtype counts as float32."""
    parameters = (match.call.arguments.get(name) for name in ("weight", "bias"))
    calls = [call for call in parameters if isinstance(call, OpCall)]
    expanded = [call.args[1] for call in calls if call.op is torch.ops.aten.expand.default]
    return sum(2 * math.prod(shape) * torch.float32.itemsize for shape in expanded)


def _bytes(node: Node) -> int:
    """Returns the bytes of a tensor's memory, in which broadcast dimensions (stride 0) count once;
    0 if a size is not known."""
    tensor = value(node)
    sizes = hints(tensor) if isinstance(tensor, torch.Tensor) else None
    if sizes is None:
        return 0
    stored = [size for size, stride in zip(sizes, tensor.stride(), strict=True) if stride != 0]
    itemsize: int = tensor.dtype.itemsize
    return math.prod(stored) * itemsize
