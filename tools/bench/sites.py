"""Measures which part of a step's time softmaxes and norms take, by the names in a profile.

A site is a softmax or norm of the model. Inductor names a kernel after the ATen operators whose
code it fused, in alphabetical order, so that names tell which kernels belong to a site. The same
rule is used for plain Inductor and for fusedops. These belong to the sites:

- the operators of fusedops;
- a kernel with a part of a softmax or norm, including all that was fused into it, such as scale,
  mask, dropout, residual and casts;
- a kernel of only a dropout or a mask, because it comes before or after such a kernel. If it has an
  activation too, it belongs to the feed-forward network, and does not count, except for the dropout
  of a relu, which is an operator of fusedops.

Attention that Inductor turns into scaled_dot_product_attention does not belong to the sites,
because its matrix products cannot be separated. Nor does a kernel that has only arithmetic, such as
`mul`, because it could belong to anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from fusedops.cli.timing import Call

#: With these settings Inductor's CPU kernels appear in profiles under names of ATen operators.
KERNEL_NAMES = {"cpp.enable_kernel_profile": True, "cpp.descriptive_names": "original_aten"}

PROFILED_STEPS = 3

# How is a norm that models write as several calls recognised? Its forward pass has rsqrt or
# var_mean. In its backward pass the mean has become a division and an expansion, and the square a
# power.
_NORM_BACKWARD = r"div_(?:\w+_)?expand_(?:\w+_)?pow_(?:\w+_)?sum"


def _any_of(*names: str) -> re.Pattern[str]:
    """Returns a pattern that finds these names as whole words: "exp" in "fused_exp_sum", but not in
    "fused_expand"."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(names)})(?![a-z])")


_SITE = _any_of(
    *("softmax", "layer_norm", "rms_norm", "amax", "exp", "logsumexp"),
    *("rsqrt", "var", "var_mean", "std", _NORM_BACKWARD),
)
_DROPOUT, _MASK = _any_of("dropout"), _any_of("where", "masked_fill")
_RELU = _any_of("relu", "threshold_backward")
_ACTIVATION = _any_of("gelu", "tanh", "erf", "silu", "sigmoid")


def belongs_to_a_site(name: str) -> bool:
    """Returns whether an operator or kernel of that name belongs to a softmax or norm."""
    if name.startswith("fusedops::"):
        return True
    if "cpp_fused" not in name and not name.startswith("aten::"):
        return False
    is_link = _DROPOUT.search(name) or (_MASK.search(name) and not _RELU.search(name))
    return bool(_SITE.search(name) or (is_link and not _ACTIVATION.search(name)))


def share_of_sites(step: Call) -> float:
    """Returns which part of a step's CPU time its softmaxes and norms take, between 0 and 1."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
    return share_in(profiler.events())


def share_in(events: Iterable[FunctionEvent]) -> float:
    """Returns which part of the CPU time in the events of a profile the sites take, from 0 to 1."""
    events = list(events)
    inside = sum(event.self_cpu_time_total for event in events if _is_inside_a_site(event))
    share: float = inside / sum(event.self_cpu_time_total for event in events)
    return share


def _is_inside_a_site(event: FunctionEvent | None) -> bool:
    """Returns whether an event belongs to a site, or is called by one that does, such as the
    allocation of a result."""
    while event is not None:
        if belongs_to_a_site(event.name):
            return True
        event = event.cpu_parent
    return False
