"""Over many draws the tokens come as often as the distribution says. All seeds are fixed."""

import numpy as np
import pytest
import torch

from engine.sampling import sample

VOCAB = 130
DRAWS = 8000
LOGITS = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(9)) * 2


@pytest.mark.parametrize("along", ["choice", "seed", "position"])
@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.6}, {"top_p": 0.8}, {"top_k": 12, "temperature": 1.5}, {"min_p": 0.05}],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(oracle, make_row, params, along):
    row = make_row(**params)
    columns = {"seed": 21, "choice": 3, "position": 4}
    fields = ("row", "params", "tokens", "num_prompt", "stop_token_ids")
    fixed = {name: getattr(row, name) for name in fields}
    rows = [type(row)(**fixed, **(columns | {along: i})) for i in range(DRAWS)]

    drawn = [drawn.token_id for drawn in sample(LOGITS, rows)]

    expected = oracle.distribution(LOGITS[0].numpy(), row.params) * DRAWS
    observed = np.bincount(drawn, minlength=VOCAB)
    assert not observed[expected == 0].any()
    # Tokens too rare for a chi-square of their own are counted as one.
    common = expected >= 5
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    chi_square = ((observed - expected) ** 2 / expected).sum()
    degrees = common.sum()
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)
