"""Batch-invariant arithmetic: right, and the same bits for a row whatever stands beside it. Run on
a GPU by the `cuda` tests, and by `interpreted_kernels.py` in Triton's interpreter.
"""

import torch
from torch.nn.functional import linear

from engine.cuda.batch_invariant import addmm, mean_dim, mm

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
