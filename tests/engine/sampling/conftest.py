"""A slow sampler in plain numpy float64, one row at a time: the oracle of the sampler's tests."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from engine.native.library import load_library
from engine.sampling import NativeSampler, SampleRow
from engine.sampling.uniform import uniforms
from scheduler import SamplingParams

PROMPT = (3, 7, 7, 11)


class SlowSampler:
    """What vLLM documents, token by token and filter by filter."""

    def adjusted(self, logits: np.ndarray, row: SampleRow) -> np.ndarray:
        params = row.params
        x = logits.astype(np.float64).copy()
        prompt, output = list(row.tokens[: row.num_prompt]), list(row.tokens[row.num_prompt :])
        for token in range(len(x)):
            if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
                x[token] = -np.inf
            x[token] += params.logit_bias.get(token, 0.0)
            if len(output) < params.min_tokens and token in row.stop_token_ids:
                x[token] = -np.inf
            if token in prompt or token in output:
                penalty = params.repetition_penalty
                x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
            count = output.count(token)
            x[token] -= params.frequency_penalty * count
            x[token] -= params.presence_penalty * (count > 0)
        return x

    def distribution(self, x: np.ndarray, params: SamplingParams) -> np.ndarray:
        """Probabilities of the kept tokens, in vocabulary order."""
        order = sorted(range(len(x)), key=lambda token: (-x[token], token))
        if params.temperature == 0.0:
            order, params = order[:1], SamplingParams()
        weights = np.exp((x - x.max()) / params.temperature)
        kept = [token for token in order if weights[token] >= params.min_p]
        if params.top_k > 0:
            kept = kept[: params.top_k]
        total, mass, nucleus = sum(weights[token] for token in kept), 0.0, []
        for token in kept:
            nucleus.append(token)
            mass += weights[token]
            if params.top_p < 1.0 and mass >= params.top_p * total:
                break
        probabilities = np.zeros(len(x))
        probabilities[nucleus] = weights[nucleus] / weights[nucleus].sum()
        return probabilities

    def pick(self, probabilities: np.ndarray, row: SampleRow) -> int:
        """Halve the vocabulary, rounded up to a power of two and at least a block of 64, with one
        number each time, until a token is left."""
        halvings = max(len(probabilities) - 1, 63).bit_length()
        [numbers] = uniforms([row.seed], [row.choice], [row.position], halvings)
        low, high = 0, 2**halvings
        for number in numbers:
            middle = (low + high) // 2
            left, right = probabilities[low:middle].sum(), probabilities[middle:high].sum()
            low, high = (middle, high) if number * (left + right) >= left else (low, middle)
        return low

    def token(self, logits: np.ndarray, row: SampleRow) -> int:
        return self.pick(self.distribution(self.adjusted(logits, row), row.params), row)


@pytest.fixture(scope="module", params=["numpy", "native"], autouse=True)
def way_of_drawing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test draws, and scores, with numpy and with the CPU kernels."""
    library = load_library() if request.param == "native" else None
    if request.param == "native" and library is None:
        pytest.skip("no native kernels here")
    with pytest.MonkeyPatch.context() as patch:
        if library is not None:
            library.set_threads(2)
            for name in ("sample", "score"):
                if hasattr(request.module, name):
                    native = partial(getattr(request.module, name), native=NativeSampler(library))
                    patch.setattr(request.module, name, native)
        yield


@pytest.fixture(scope="session")
def oracle() -> SlowSampler:
    return SlowSampler()


@pytest.fixture(scope="session")
def make_row() -> Callable[..., SampleRow]:
    """A `SampleRow` from sampling parameters by name; the position follows from the tokens."""

    def make(
        row: int = 0,
        *,
        seed: int = 0,
        choice: int = 0,
        prompt: tuple[int, ...] = PROMPT,
        output: tuple[int, ...] = (),
        stop_token_ids: tuple[int, ...] = (),
        **params: object,
    ) -> SampleRow:
        tokens = [*prompt, *output]
        return SampleRow(
            row=row,
            params=SamplingParams(**params),
            seed=seed,
            choice=choice,
            position=len(tokens),
            tokens=tokens,
            num_prompt=len(prompt),
            stop_token_ids=frozenset(stop_token_ids),
        )

    return make
