"""Batch-invariant arithmetic: right, and the same bits for a row whatever stands beside it. Run on
a GPU by the `cuda` tests, and by `interpreted_kernels.py` in Triton's interpreter.
"""

import torch
from torch.nn.functional import linear

from engine.cuda.batch_invariant import addmm, mean_dim, mm
from engine.cuda.launch import descend_launch
from engine.sampling.on_device import descend_by_torch

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def check_products(device: torch.device) -> None:
    """Shapes that are no multiples of the tiles, weights as a linear layer has them."""
    generator = torch.Generator().manual_seed(0)
    for dtype in TOLERANCE:
        for inner, columns in ((70, 130),):
            left = torch.randn((67, inner), generator=generator).to(device, dtype)
            weight = torch.randn((columns, inner), generator=generator).to(device, dtype)
            bias = torch.randn(columns, generator=generator).to(device, dtype)
            for rows in (3, 67):
                part = left[:rows]
                for ours, theirs in (
                    (mm(part, weight.t()), linear(part.float(), weight.float())),
                    (
                        addmm(bias, part, weight.t()),
                        linear(part.float(), weight.float(), bias.float()),
                    ),
                ):
                    difference = (ours.float() - theirs).abs().max().item()
                    assert difference <= TOLERANCE[dtype] * inner**0.5, (dtype, inner, difference)
            together = mm(left, weight.t())
            for row in (0, 33, 66):
                assert torch.equal(mm(left[row : row + 1], weight.t())[0], together[row])


def check_means(device: torch.device) -> None:
    values = torch.randn((5, 3, 1500), generator=torch.Generator().manual_seed(1)).to(device)
    together = mean_dim(values, [-1], keepdim=True)
    torch.testing.assert_close(together, values.mean(-1, keepdim=True))
    assert torch.equal(mean_dim(values[2:3, 1:2], [2]), together[2:3, 1:2, 0])
    torch.testing.assert_close(mean_dim(values, [0]), values.mean(0))
    torch.testing.assert_close(mean_dim(values, None), values.mean())


def check_draws(device: torch.device) -> None:
    """The halvings in one launch draw what they draw step by step, never a place without mass."""
    generator = torch.Generator().manual_seed(2)
    masses = torch.randint(2**43, (40, 97), generator=generator).to(device)
    masses[:, ::3] = 0
    masses[5:] *= (torch.rand((35, 97), generator=generator) < 0.2).to(device)
    masses[:, 50] += 2**36
    numbers = torch.rand((40, 7), generator=generator, dtype=torch.float64).to(device)
    numbers[3], numbers[4] = 0.0, 1 - 2**-53
    tokens = torch.empty(40, dtype=torch.int64, device=device)
    descend_launch(tokens, masses.cumsum(-1), numbers).run()
    assert torch.equal(tokens, descend_by_torch(masses.cumsum(-1), numbers))
    assert (masses.gather(-1, tokens[:, None]) > 0).all()
