"""What `make bench-cuda` prints: tables with a column for every figure, and the goals."""

from benchmarks.cuda_tables import goals, markdown


def test_a_row_without_a_figure_leaves_its_cell_empty() -> None:
    rows = [{"batch": 1, "step ms": 2.34567}, {"batch": 256, "note": "does not fit"}]
    assert markdown("steps", rows).splitlines() == [
        "| steps | step ms | note |",
        "|---|--:|--:|",
        "| 1 | 2.35 |  |",
        "| 256 |  | does not fit |",
    ]


def test_goals_are_told_as_met_or_missed_where_there_are_figures() -> None:
    results = {
        "kernels": [
            {"kernel": "triton", "shape": "decode 64 x 4096", "of the limit": 0.85},
            {"kernel": "gathered", "shape": "decode 64 x 4096", "of the limit": 0.1},
            {"kernel": "varlen", "shape": "decode 64 x 4096", "note": "refused"},
        ],
        "steps": [
            {"batch": 1, "step / floor": 1.2, "gap": 0.01},
            {"batch": 64, "step / floor": 1.4, "gap": 0.02},
            {"batch": 256, "step / floor": 9.0, "gap": 0.02},
            {"batch": 512, "note": "does not fit"},
        ],
    }
    attention, steps, gap = goals(results)
    assert "85%" in attention and attention.endswith(": met")
    assert "1.40 floors" in steps and steps.endswith("**missed**")
    assert "2.0%" in gap and gap.endswith(": met")
    assert goals({"limits": {}}) == []
