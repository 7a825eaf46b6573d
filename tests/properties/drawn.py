"""Random tensors of any shape, strides, offset and dtype, with values that are hard for kernels.

Hypothesis draws a :class:`Drawn`, a few plain fields; a failing example prints as what makes the
tensor again: ``Drawn(dtype=..., shape=(2, 15), ...).tensor()``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}
#: Around the sizes of vectors, tiles, chunks and groups of rows.
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 257)
LONG = (513, 1000, 1025, 2049, 4097, 5000)
ROWS = (1, 1, 2, 3, 4, 5, 8, 17, 33)
VALUES = ("normal", "shifted", "constant", "ties", "wide", "tiny", "large")
SPECIALS = ("nan", "-nan", "any nan", "inf", "-inf", "-0", "denormal", "max", "lowest")
#: The kinds of values without those whose differences overflow.
SUBTRACTABLE = tuple(name for name in SPECIALS if name not in ("max", "lowest"))
#: A dimension; the test takes it modulo their number.
DIMS = st.integers(-4, 3)
LAYOUTS = ("contiguous", "transposed", "columns", "rows", "every other", "expanded", "negative")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The description of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    values: str = "normal"
    scale: float = 1.0
    shift: float = 0.0
    specials: tuple[str, ...] = ()
    layout: str = "contiguous"
    offset: int = 0
    seed: int = 0

    def tensor(self) -> torch.Tensor:
        random = np.random.default_rng(self.seed)
        elements = self._elements(random, math.prod(self.shape))
        for name in self.specials if len(elements) else ():
            elements[random.integers(len(elements))] = self._special(name, random)
        return self._laid_out(elements.reshape(self.shape))

    def _elements(self, random: np.random.Generator, count: int) -> torch.Tensor:
        largest = torch.finfo(self.dtype).max
        normal = random.standard_normal(count)
        values = {
            "normal": lambda: normal * self.scale,
            "shifted": lambda: normal * self.scale + self.shift,
            "constant": lambda: np.full(count, self.shift + self.scale),
            "ties": lambda: np.sign(normal) * self.scale + self.shift,
            "wide": lambda: normal * np.exp2(random.uniform(-20, 12, count)),
            "tiny": lambda: normal * float(torch.finfo(self.dtype).smallest_normal),
            "large": lambda: np.clip(normal, -1, 1) * largest / 4,
        }
        return torch.from_numpy(values[self.values]().clip(-largest, largest)).to(self.dtype)

    def _special(self, name: str, random: np.random.Generator) -> torch.Tensor:
        info = torch.finfo(self.dtype)
        plain = {"inf": math.inf, "-inf": -math.inf, "-0": -0.0, "max": info.max}
        plain |= {"lowest": info.min, "denormal": info.smallest_normal * random.random()}
        if name in plain:
            return torch.tensor(plain[name], dtype=self.dtype)
        infinity = torch.tensor(math.inf, dtype=self.dtype).view(INTEGERS[self.dtype])
        ones = torch.tensor(-1, dtype=INTEGERS[self.dtype])
        mantissa = round(1 / info.eps) - 1  # every bit of it
        payload = random.integers(1, mantissa, endpoint=True) if name == "any nan" else mantissa
        bits = infinity | int(payload)
        return (bits if name != "-nan" else ones).view(self.dtype)

    def _laid_out(self, elements: torch.Tensor) -> torch.Tensor:
        """The same elements with the strides of the layout, ``offset`` elements into a storage."""
        shape = elements.shape
        if not shape or self.layout == "contiguous":
            return self._moved(elements)
        last, first = shape[-1], shape[0]
        if self.layout == "transposed":
            return self._moved(elements.transpose(0, -1).contiguous()).transpose(0, -1)
        if self.layout == "columns":
            return self._moved(torch.cat([elements, elements[..., :3]], -1))[..., :last]
        if self.layout == "rows":
            return self._moved(torch.cat([elements, elements], 0))[:first]
        if self.layout == "every other":
            return self._moved(elements.repeat_interleave(2, -1))[..., ::2]
        if self.layout == "expanded":
            return self._moved(elements[:1]).expand(shape) if first else elements
        flipped = torch.complex(torch.zeros(shape), torch.zeros(shape))
        if self.dtype != torch.float32:  # complex numbers of 16 bits are rare
            return self._moved(elements)
        flipped.imag.copy_(elements).neg_()
        return flipped.conj().imag

    def _moved(self, elements: torch.Tensor) -> torch.Tensor:
        storage = torch.cat([elements.new_zeros(self.offset), elements.reshape(-1)])
        return storage[self.offset :].view(elements.shape)


def shapes(columns: tuple[int, ...] = COLUMNS) -> st.SearchStrategy[tuple[int, ...]]:
    """One to four dimensions, mostly two; the last one of ``columns``."""
    rows = st.sampled_from(ROWS)
    column = st.sampled_from(columns)
    return st.one_of(
        st.tuples(rows, column),
        st.tuples(column),
        st.tuples(rows, column),
        st.tuples(st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 5)), column),
        st.tuples(*[st.sampled_from((1, 2, 3))] * 3, st.sampled_from((1, 2, 3, 8, 17))),
    )


def tensors(
    shape: st.SearchStrategy[tuple[int, ...]] | None = None,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    specials: tuple[str, ...] = SPECIALS,
    values: tuple[str, ...] = VALUES,
    layouts: tuple[str, ...] = LAYOUTS,
) -> st.SearchStrategy[Drawn]:
    """Any tensor; with long rows now and then."""
    few = st.lists(st.sampled_from(specials), max_size=3) if specials else st.just([])
    return st.builds(
        Drawn,
        dtype=st.sampled_from(dtypes),
        shape=shapes() | shapes(LONG) if shape is None else shape,
        values=st.sampled_from(values),
        scale=st.sampled_from((1.0, 1e-3, 3.0, 30.0, 1e3)),
        shift=st.sampled_from((0.0, 1.0, -17.0, 300.0, 1e4)),
        specials=st.just(()) | few.map(tuple),
        layout=st.sampled_from(layouts),
        offset=st.sampled_from((0, 0, 1, 3)),
        seed=st.integers(0, 2**32 - 1),
    )


def like(drawn: Drawn, **changes: object) -> torch.Tensor:
    """Another tensor of ``drawn``'s kind, with other numbers and the given changes."""
    return dataclasses.replace(drawn, seed=drawn.seed ^ 0x5EED, **changes).tensor()
