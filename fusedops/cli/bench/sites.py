"""Which share of a compiled step its softmaxes and norms take, by the names in a profile.

Inductor names a kernel after the ATen operators whose code it fused, in alphabetical order. By one
rule, for plain Inductor and for fusedops, these belong to the sites:

- the operators of fusedops;
- a kernel that holds a part of a softmax or of a norm, with whatever else was fused into it, such
  as scale, mask, dropout, residual and casts;
- a kernel of dropout or of a mask alone, which is a link of such a chain before or behind it,
  unless it holds an activation: then it belongs to the feed-forward network.

What Inductor itself turns into scaled_dot_product_attention does not belong: its matrix products
cannot be told apart. Nor does a kernel of nothing but arithmetic, as `mul`, which could be
anything's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from fusedops.cli.timing import Call

#: Settings of Inductor that put its CPU kernels, under such names, into a profile.
KERNEL_NAMES = {"cpp.enable_kernel_profile": True, "cpp.descriptive_names": "original_aten"}

PROFILED_STEPS = 3

# A norm that is written out leaves rsqrt or var_mean, but not in its backward pass: there the mean
# has become a division and an expansion, and the square a power.
_NORM_BACKWARD = r"div_(?:\w+_)?expand_(?:\w+_)?pow_(?:\w+_)?sum"


def _any_of(*names: str) -> re.Pattern[str]:
    """Matches whole names between underscores: "exp", not "expand"."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(names)})(?![a-z])")


_SITE = _any_of(
    *("softmax", "layer_norm", "rms_norm", "amax", "exp", "logsumexp"),
    *("rsqrt", "var", "var_mean", "std", _NORM_BACKWARD),
)
_LINK = _any_of("dropout", "where", "masked_fill")
_ACTIVATION = _any_of("relu", "threshold_backward", "gelu", "tanh", "erf", "silu", "sigmoid")


def belongs_to_a_site(name: str) -> bool:
    """Whether the operator or kernel of that name computes a softmax, a norm or a link to one."""
    if name.startswith("fusedops::"):
        return True
    if "cpp_fused" not in name and not name.startswith("aten::"):
        return False
    return bool(_SITE.search(name) or (_LINK.search(name) and not _ACTIVATION.search(name)))


def share_of_sites(step: Call) -> float:
    """The share of a step's CPU time that its softmaxes and norms take, between 0 and 1."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
    return share_in(profiler.events())


def share_in(events: Iterable[FunctionEvent]) -> float:
    """The same of the events of a profile."""
    events = list(events)
    inside = sum(event.self_cpu_time_total for event in events if _is_inside_a_site(event))
    share: float = inside / sum(event.self_cpu_time_total for event in events)
    return share


def _is_inside_a_site(event: FunctionEvent | None) -> bool:
    """Also what a site calls, such as the allocation of its result."""
    while event is not None:
        if belongs_to_a_site(event.name):
            return True
        event = event.cpu_parent
    return False
