"""Modes that let every call through, and list the functions that were called."""

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class _Listing:
    def __init__(self):
        super().__init__()
        self.seen = []

    def listed(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Dispatched(_Listing, TorchDispatchMode):
    """What the dispatcher calls."""

    __torch_dispatch__ = _Listing.listed


class Called(_Listing, TorchFunctionMode):
    """What Python calls."""

    __torch_function__ = _Listing.listed
