"""`make bench-cuda` on a machine without a GPU: every line of it runs, on shapes of no weight."""

import json
from pathlib import Path

import pytest

from benchmarks.cuda_bench import main


def test_every_section_gives_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    assert main(["--rehearse", "--json", str(figures)]) == 0
    printed = capsys.readouterr().out
    assert "no figure below means anything" in printed
    results = json.loads(figures.read_text())
    for section in ("steps", "prefill", "kernels", "peer"):
        assert f"| {section} |" in printed
        assert not [row for row in results[section] if "failed" in row], section
    assert [row["batch"] for row in results["steps"]] == [1, 3]
    refused = {row["kernel"] for row in results["kernels"] if "note" in row}
    assert refused == {"varlen"}, "a kernel that refuses a device or a shape says so in its row"


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_sections_begun_when_the_time_is_up_say_so(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    main(["--rehearse", "--only", "prefill", "--minutes", "0", "--json", str(figures)])
    rows = json.loads(figures.read_text())["prefill"]
    assert len(rows) == 2 and rows[-1] == {"tokens": "the time was up"}
