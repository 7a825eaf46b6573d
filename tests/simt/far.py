"""The same launch with rows, slices and operands so far apart that no 32-bit offset reaches them.

Address space is reserved, and only the pages of the rows become memory. An access whose offset was
cut to 32 bits lands between the rows: on zeros, or on an address that is not mapped.
Needs numpy only.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import Structure
from itertools import product

from .emulator.library import DTYPES, Args
from .emulator.structs import Operand, Rows, Slices

#: The distance in elements: whole vectors of every dtype, and its lower half is negative as an
#: int32.
FAR = 2**32 + 2**31 + 64
_NORESERVE = 0x4000  # Linux's value; not every Python's mmap has the name
_ITEMS = [dtype.itemsize for dtype in DTYPES.values()]

Move = tuple[int, int, int]  # from, to, bytes


def _reserved(size: int) -> mmap.mmap:
    """Address space. A page of it becomes memory when it is written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        return mmap.mmap(-1, size, flags=flags)
    except OSError:
        raise MemoryError(f"no {size >> 30} GiB of address space; see ulimit -v") from None


@contextmanager
def spread(args: Args) -> Iterator[None]:
    """Moves all rows, slices and operands of ``args`` FAR apart; at the end of the block copies
    them back to where they were."""
    moves: list[Move] = []
    reserved: list[mmap.mmap] = []
    for part in _parts(args):
        if part.data:
            _move(part, args, moves, reserved)
    for near, far, size in moves:
        ctypes.memmove(far, near, size)
    yield
    for near, far, size in moves:
        ctypes.memmove(near, far, size)
    for space in reserved:
        space.close()


def _parts(struct: Structure) -> Iterator[Rows | Slices | Operand]:
    for name, kind in struct._fields_:
        value = getattr(struct, name)
        if kind in (Rows, Slices, Operand):
            yield value
        elif issubclass(kind, Structure):
            yield from _parts(value)


def _move(
    part: Rows | Slices | Operand, args: Args, moves: list[Move], reserved: list[mmap.mmap]
) -> None:
    is_bool = isinstance(part, Operand) and part.is_bool
    item = 1 if is_bool else _ITEMS[part.dtype]
    steps, length = _steps(part, args)
    places = list(product(*(range(count) for count, _ in steps)))
    # There is room on both sides: an offset that wraps to a negative one reads zeros.
    reserved.append(_reserved((len(places) + 2) * FAR * item))
    first = ctypes.addressof(ctypes.c_char.from_buffer(reserved[-1]))
    first += FAR * item + part.data % 256
    for number, place in enumerate(places):
        offset = sum(at * stride for at, (_, stride) in zip(place, steps, strict=True))
        moves.append((part.data + offset * item, first + number * FAR * item, length * item))
    part.data = first
    _set_strides(part, steps)


def _steps(part: Rows | Slices | Operand, args: Args) -> tuple[list[tuple[int, int]], int]:
    """How many places there are in each direction, how far apart, and how long each is."""
    if isinstance(part, Rows):
        return [(args.rows, part.spacing.stride)], args.cols
    if isinstance(part, Slices):
        return [(args.outer, part.outer_stride), (args.dim_size, part.dim_stride)], args.inner
    dims = args.scores.dims
    sizes = [(dims.sizes[d] if part.strides[d] else 1) for d in range(dims.count)]
    steps = [(size, part.strides[d]) for d, size in enumerate(sizes)]
    return steps, args.cols if part.col_stride else 1


def _set_strides(part: Rows | Slices | Operand, steps: list[tuple[int, int]]) -> None:
    strides, stride = [], FAR
    for count, before in reversed(steps):
        strides.insert(0, stride if before else 0)
        stride *= count
    if isinstance(part, Rows):
        part.spacing.stride = strides[0]
    elif isinstance(part, Slices):
        part.outer_stride, part.dim_stride = strides
    else:
        for d, value in enumerate(strides):
            part.strides[d] = value
