"""Changes to the logits before a draw: masks, bias and penalties, in vLLM's order.

    allowed_token_ids, logit_bias, min_tokens, repetition penalty, frequency and presence penalty

Called by the sampler with the rows that need any of it. Only the named tokens are touched: their
logits are gathered, changed and put back, all rows together.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.sampling.blocks import Indices
from engine.sampling.rows import SampleRow


def adjust(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """A float32 copy [len(rows), vocab] in which line i is rows[i]'s logits, adjusted.

    Masked tokens are -inf; a line may hold nothing else. Raises ValueError for a token id outside
    the vocabulary.
    """
    index = torch.tensor([row.row for row in rows], device=logits.device)
    x = logits.index_select(0, index).to(torch.float32)
    _keep_allowed(x, rows)
    _add_bias(x, rows)
    _mask_stop_tokens(x, rows)
    _penalise(x, rows)
    return x


def _keep_allowed(x: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    allowed = {
        line: row.params.allowed_token_ids
        for line, row in enumerate(rows)
        if row.params.allowed_token_ids is not None
    }
    if allowed:
        at = _address(x, allowed)
        kept = x.view(-1)[at]
        x[torch.tensor(list(allowed), device=x.device)] = -torch.inf
        x.view(-1)[at] = kept


def _add_bias(x: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    biased = {line: row.params.logit_bias for line, row in enumerate(rows) if row.params.logit_bias}
    if biased:
        amounts = [amount for bias in biased.values() for amount in bias.values()]
        x.view(-1)[_address(x, biased)] += torch.tensor(amounts, device=x.device)


def _mask_stop_tokens(x: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    # A tokenizer may name an end token that the model cannot produce: nothing to mask then.
    vocab = x.shape[1]
    masked = {
        line: [token for token in row.stop_token_ids if token < vocab]
        for line, row in enumerate(rows)
        if row.masks_stop_tokens and row.stop_token_ids
    }
    if masked:
        x.view(-1)[_address(x, masked)] = -torch.inf


def _penalise(x: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Hugging Face's repetition penalty over prompt and output, OpenAI's other two over output."""
    vocab = x.shape[1]
    seen = [_seen(row, line, vocab) for line, row in enumerate(rows) if row.params.penalised]
    marked = np.sort(np.concatenate(seen)) if seen else np.empty(0, np.int64)
    if not len(marked):
        return
    address = marked >> 1
    first = np.flatnonzero(np.diff(address, prepend=-1))
    counts = np.add.reduceat(marked & 1, first)
    address = address[first]
    line = address // vocab
    params = [row.params for row in rows]
    frequency = np.array([p.frequency_penalty for p in params])[line] * counts
    presence = np.array([p.presence_penalty for p in params])[line] * (counts > 0)
    repetition = np.array([p.repetition_penalty for p in params])[line]

    at = torch.from_numpy(address).to(x.device)
    value = x.view(-1)[at]
    penalty = _like(x, repetition)
    value = torch.where(value > 0, value / penalty, value * penalty)
    x.view(-1)[at] = value - _like(x, frequency) - _like(x, presence)


def _seen(row: SampleRow, line: int, vocab: int) -> Indices:
    """The tokens that a row's penalties touch, as twice their place in the flattened logits, plus
    one for tokens of the output: sorted, equal tokens stand together and the last bits count."""
    start = 0 if row.params.repetition_penalty != 1.0 else row.num_prompt
    marked = (_as_ids(row.tokens[start:], vocab) + line * vocab) * 2
    marked[row.num_prompt - start :] += 1
    return marked


def _as_ids(tokens: Collection[int], vocab: int) -> Indices:
    ids = np.fromiter(tokens, np.int64, len(tokens))
    wrong = ids[(ids < 0) | (ids >= vocab)]
    if len(wrong):
        raise ValueError(f"token id {wrong[0]} is outside the vocabulary of {vocab} tokens")
    return ids


def _address(x: torch.Tensor, ids_by_line: Mapping[int, Collection[int]]) -> torch.Tensor:
    """Where the lines' tokens lie in `x`, flattened."""
    vocab = x.shape[1]
    places = [_as_ids(tokens, vocab) + line * vocab for line, tokens in ids_by_line.items()]
    return torch.from_numpy(np.concatenate(places)).to(x.device)


def _like(x: torch.Tensor, values: NDArray[np.float64]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(x.device)
