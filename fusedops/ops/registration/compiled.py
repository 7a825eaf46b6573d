"""The operators as Inductor's Python code calls them on the CPU (``graph/kernel_calls.py``): each
attribute is an operator, by :func:`in_compiled_code`.

``torch.ops`` is made for calls of all kinds. The code that it runs takes 5 to 12 us, and in a
model, where the caches are full of other data by then, 150 to 200 us. A call of this module takes 2
to 3 us, and 45 to 90 us in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusedops.ops.registration.call import in_compiled_code


def __getattr__(op: str) -> Callable[..., Any]:
    """Binds the operator of that name when it is used for the first time."""
    if op.startswith("__"):
        raise AttributeError(op)
    function: Callable[..., Any] = globals().setdefault(op, in_compiled_code(op))
    return function
