"""Random programs, as Python source, of the calls that the rules know.

A program is drawn as a list of tokens: a context to enter or none, a step, and how many contexts to
leave behind it. A step reads one or two of the tensors so far, may write into one of them, and
gives the next. Writing a program runs it: a step that eager refuses is left out. So each step
can follow every other, whatever their shapes, dtypes and modes.
"""

from __future__ import annotations

import linecache
import operator
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType

import decomposed
import norm_forms
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

#: The precision of a program that computes in float64 alone.
EXACT = 1e-9
#: The precision of others, by what their source contains.
PRECISIONS = {
    "bfloat16": 2**-8,
    "half": 2**-11,
    "float16": 2**-11,
    "float()": 2**-24,
    "in_float": 2**-24,
}
SHAPE = (2, 4, 4)
KEEP = [[True, False, True, True], [True, True, False, True]]


def softmax_decomposed_in_place(v):
    e = v - v.max(-1, keepdim=True)[0]
    e = e.exp()
    e /= e.sum(-1, keepdim=True)
    return e


def norm_with_statistics_of_no_gradient(v, weight):
    with torch.no_grad():
        mean = v.mean(-1, keepdim=True)
        variance = (v - mean).pow(2).mean(-1, keepdim=True)
    return weight * ((v - mean) / torch.sqrt(variance + 1e-5))


def rms_norm_in_float(v, weight):
    wide = v.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(v.dtype)


def causal(v):
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    return v.masked_fill(hidden, -torch.inf)


def dropout_in_inference(v):
    return F.dropout(v, 0.5, training=False)


CHAINS = [
    "{v} * 0.5",
    "-2.0 * {v}",
    "{v} / 3",
    "{v} + {u}",
    "{u} + {v}",
    "{v} - {u} * 0.25",
    "{v} + bias",
    "bias + {v}",
    "{v} - bias[:1]",
    "{v} @ {u}",
    "torch.baddbmm(bias, {v}, {u}, alpha=0.5)",
    "{v}.masked_fill(~keep, -torch.inf)",
    "{v}.masked_fill(keep == 0, -30.0)",
    "torch.where(keep, {v}, -30.0)",
    "torch.where(~keep, -torch.inf, {v})",
    "causal({v})",
    "torch.tanh({v})",
    "{v}.sin()",
]
SITES = [
    "{v}.softmax(-1)",
    "torch.softmax({v}, 1)",
    "F.softmax({v}, dim=-1, dtype=torch.float64)",
    "{v}.float().softmax(-1).to({v}.dtype)",
    "softmax_decomposed({v})",
    "softmax_decomposed_in_place({v})",
    "{v}.log_softmax(-1).exp()",
    "{v}.log_softmax(-1)",
    "F.layer_norm({v}, (4,), weight, shift, 1e-5)",
    "F.layer_norm({v}, (4,))",
    "F.layer_norm({v}, (4, 4))",
    "layer_norm_decomposed({v}, weight, shift)",
    "LAYER_NORMS['variance: unbiased=False']({v}, weight, shift, -1)",
    "LAYER_NORMS['var_mean with correction']({v}, weight, shift, -1)",
    "LAYER_NORMS['variance: pow']({v}, weight[:, None], shift[:, None], 1)",
    "RMS_NORMS['unsqueeze']({v}, weight[:, None], shift, 1)",
    "norm_with_statistics_of_no_gradient({v}, weight)",
    "F.rms_norm({v}, (4,), weight, 1e-5)",
    "rms_norm_decomposed({v}, weight)",
    "rms_norm_in_float({v}, weight)",
    "F.layer_norm({v} + {u}, (4,), weight, shift, 1e-5)",
    "F.layer_norm(({v} + {u}).reshape(-1, 4), (4,)).view(2, 4, 4)",
    "rms_norm_decomposed({v} + {u}, weight)",
    "F.rms_norm({v} + {u}, (4,), weight, 1e-5)",
    "layer_norm_decomposed({v} + {u}, weight, shift)",
    "torch.stack([{v}.softmax(-1), {u}.softmax(-1)])",
    "torch.stack([F.layer_norm({v}, (4,)), F.layer_norm({u}, (4,))], 1)",
]
VIEWS = [
    "{v}.transpose(1, 2)",
    "{v}.view(2, 4, 4)",
    "{v}.reshape(-1, 4)",
    "{v}[0]",
    "{v}[:, 1:]",
    "{v}[..., ::2]",
    "{v}.chunk(2, -1)[1]",
    "{v}[:1].expand(2, 4, 4)",
    "{v}.unbind(0)[-1]",
    "{v}.unsqueeze(1).squeeze(1)",
    "{v}.detach()",
    "{v}.contiguous()",
    "dropout_in_inference({v})",
    "F.dropout({v}, 0.0)",
    "{v} * 1",
]
CASTS = [
    "{v}.double()",
    "{v}.float()",
    "{v}.bfloat16()",
    "{v}.half()",
    "{v}.to({u}.dtype)",
]
WRITES = [
    "{v}.mul_(0.5)",
    "{v}.masked_fill_(~keep, -30.0)",
    "{v}.add_({u} * 1)",
    "{v}.copy_({u} * 1)",
    "{v}[0].copy_({v}[0].sin())",
    "{v}.transpose(-1, -2)[..., 0].mul_(2)",
    "{v}.detach().mul_(0.5)",
    "torch._foreach_mul_([{v}], 2.0)",
    "operator.setitem({v}, (..., 0), {u}[..., 1] * 1)",
    "operator.setitem({v}, ~keep.expand_as({v}), -30.0)",
    "torch.sin({u}, out={v})",
]
SWITCHES = ["torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"]
CONTEXTS = [
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.inference_mode()",
    "torch.inference_mode(False)",
    "torch.set_grad_enabled(False)",
    "torch.autocast('cpu', torch.bfloat16)",
    "torch.autocast('cpu', torch.float16)",
    "torch.autocast('cpu', enabled=False)",
]
_GLOBALS = {**globals(), **vars(decomposed), **vars(norm_forms), "operator": operator}
_PARAMETERS = "x, y, n, bias, weight, shift, keep"

# The tensors to read, counted from the last one back: mostly the last one itself.
_AGO = st.sampled_from([0] * 9 + [1, 2, 3, 4])


def programs(steps, contexts=(), dtypes=(torch.float64,), longest=14):
    """A strategy: tokens, which tensors are returned, which inputs require grad, and a dtype."""
    step = st.tuples(st.sampled_from(steps), _AGO, _AGO)
    token = st.tuples(
        st.sampled_from([None] * 2 * len(contexts) + list(contexts)),
        step,
        st.sampled_from([0, 1, 1, 2]),
    )
    return st.builds(
        Program,
        st.lists(token, min_size=longest // 3, max_size=longest),
        st.sets(_AGO, max_size=2),
        st.sets(st.sampled_from(["x", "y", "bias", "weight", "shift"]), min_size=1),
        st.sampled_from(dtypes),
    )


@dataclass
class Program:
    tokens: list
    returned: set
    trained: set
    dtype: torch.dtype

    @property
    def precision(self):
        """The tolerances of the narrowest dtype that the program may compute in."""
        steps = [f"{context} {step}" for context, (step, *_), _ in self.tokens]
        found = [p for name, p in PRECISIONS.items() for step in steps if name in step]
        return max([EXACT, torch.finfo(self.dtype).eps, *found])

    def inputs(self, nearby=False):
        """The inputs, always the same, or others that differ from them by a rounding."""
        generator = torch.Generator().manual_seed(0)
        shapes = {"x": SHAPE, "y": SHAPE, "n": SHAPE, "bias": (4, 4), "weight": (4,), "shift": (4,)}
        inputs = []
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            drawn += nearby * self.precision * noise
            inputs.append(drawn.to(self.dtype).requires_grad_(name in self.trained))
        return [*inputs, torch.tensor(KEEP)[:, None]]

    def function(self):
        """The program as a function of its inputs; its source is `function.source`."""
        source = self._source()
        name = f"<random program {hash(source)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope = dict(_GLOBALS)
        exec(compile(source, name, "exec"), scope)
        function: FunctionType = scope["program"]
        function.source = source
        return function

    def _source(self):
        given = dict(zip(_PARAMETERS.split(", "), self.inputs(), strict=True))
        writer = _Writer({**_GLOBALS, **given})
        with torch.enable_grad():
            for token in self.tokens:
                writer.write_token(*token)
            writer.leave(len(writer.contexts))
        results = (writer.name(ago) for ago in (0, *sorted(self.returned)))
        lines = [
            f"def program({_PARAMETERS}):",
            *writer.lines,
            f"    return [{', '.join(results)}]",
        ]
        return "\n".join(lines) + "\n"


class _Writer:
    """Writes lines of Python in the contexts that are open, and runs them."""

    def __init__(self, scope):
        self.scope, self.lines = scope, []
        self.names = ["n", "y", "x"]
        self.contexts = []
        self._assign("y * 1")
        self._assign("x * 1")

    def name(self, ago):
        return self.names[-1 - ago % len(self.names)]

    def write_token(self, context, step, left):
        template, first, second = step
        if context is not None:
            self._write(f"with {context}:")
            self.contexts.append(ExitStack())
            self.contexts[-1].enter_context(eval(context, self.scope))
        try:
            self._assign(template.format(v=self.name(first), u=self.name(second)))
        except (RuntimeError, IndexError, TypeError, ValueError):  # eager refuses it
            if context is not None:
                self._write("pass")
        self.leave(left)

    def leave(self, count):
        for _ in range(min(count, len(self.contexts))):
            self.contexts.pop().close()

    def _assign(self, expression):
        name = f"t{len(self.names)}"
        line = f"{name} = {expression}"
        exec(line, self.scope)
        self._write(line)
        if isinstance(self.scope[name], torch.Tensor):
            self.names.append(name)

    def _write(self, line):
        self.lines.append("    " * (1 + len(self.contexts)) + line)
