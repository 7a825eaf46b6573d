"""Translations by beam search, and their BLEU.

Every step runs the model over all tokens so far. This is slower than a key-value cache, but needs
no change to the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu
import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from translation.model import PAD, DecoderLM
from translation.subwords import END, SEPARATOR

BATCH = 64

Prompts = Sequence[Sequence[int]]


def beam_search(model: DecoderLM, prompts: Prompts, width: int) -> list[list[int]]:
    """Decodes by beam search: each step keeps the `width` best continuations by mean
    log-probability. With a width of 1 that is greedy search.

    Args:
        prompts: source tokens and the separator, at most as many as the model has positions.

    Returns:
        The target tokens, without the end token. They stop at the end token, or one token after the
        model's last position.
    """
    # Prompts of similar length are decoded together.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    results: list[list[int]] = [[]] * len(prompts)
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            tokens, lengths = _padded([prompts[row] for row in rows], model)
            found = _beam_batch(model, tokens, lengths, width)
            for row, result in zip(rows, found, strict=True):
                results[row] = result
    return results


def _padded(prompts: Prompts, model: DecoderLM) -> tuple[Tensor, Tensor]:
    """Prompts with room for the longest result, and their lengths."""
    tokens = torch.full((len(prompts), model.config.positions + 1), PAD)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    device = model.head.weight.device
    return tokens.to(device), torch.tensor([len(prompt) for prompt in prompts], device=device)


def next_log_probs(model: DecoderLM, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Log-probabilities of each row's next token, ``[rows, vocabulary]``; -inf for padding and the
    separator."""
    hidden = model.hidden_states(tokens[:, : lengths.max()])
    last = hidden[torch.arange(len(tokens), device=tokens.device), lengths - 1]
    log_probs = model.head(last).float().log_softmax(dim=-1)
    log_probs[:, [PAD, SEPARATOR]] = -torch.inf
    return log_probs


def _targets(tokens: Tensor, starts: Tensor) -> list[list[int]]:
    """The tokens between each prompt and the end token or the padding."""
    rows = zip(tokens.tolist(), starts.tolist(), strict=True)
    return [[id for id in row[start:] if id not in (END, PAD)] for row, start in rows]


def _beam_batch(model: DecoderLM, tokens: Tensor, lengths: Tensor, width: int) -> list[list[int]]:
    """Beam search; the beams are rows of ``[sentences * width, positions + 1]``, best first.

    A beam that has ended is continued with padding, which has log-probability 0.
    """
    sentences, capacity = tokens.shape
    starts = lengths.repeat_interleave(width)
    tokens, ends = tokens.repeat_interleave(width, dim=0), starts.clone()
    # At first all beams of a sentence are equal, so that only one of them may be continued.
    totals = torch.full((sentences, width), -torch.inf, dtype=torch.float64, device=tokens.device)
    totals[:, 0] = 0
    active = torch.ones_like(starts, dtype=torch.bool)
    while active.any():
        log_probs = torch.full((len(tokens), model.config.vocabulary), -torch.inf).to(totals)
        log_probs[~active, PAD] = 0
        log_probs[active] = next_log_probs(model, tokens[active], ends[active]).double()
        lengths = (ends - starts + active).view(sentences, width, 1)
        candidates = totals[..., None] + log_probs.view(sentences, width, -1)
        best = (candidates / lengths).flatten(1).topk(width).indices
        totals = candidates.flatten(1).gather(1, best)
        parents = best // log_probs.shape[1] + torch.arange(sentences).to(best)[:, None] * width
        tokens, ends, active = (part[parents.flatten()] for part in (tokens, ends, active))
        chosen = (best % log_probs.shape[1]).flatten()
        tokens[active, ends[active]] = chosen[active]
        ends = ends + active
        active = active & (chosen != END) & (ends < capacity)
    return _targets(tokens[::width], starts[::width])


def translate(
    model: DecoderLM, subwords: SentencePieceProcessor, prompts: Prompts, width: int
) -> list[str]:
    return subwords.decode(beam_search(model, prompts, width))


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU; 100 if every translation equals its reference.

    Source: Post, "A Call for Clarity in Reporting BLEU Scores" (2018).
    """
    return sacrebleu.corpus_bleu(list(translations), [list(references)]).score
