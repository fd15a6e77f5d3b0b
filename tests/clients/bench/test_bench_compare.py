"""Comparing result files, and the report made of them."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from test_bench_summary import failed, record

from clients.bench import main
from clients.bench.compare import compare_runs
from clients.bench.report import render_report
from clients.bench.results import ResultFile, read_results
from clients.bench.summary import details, summarise
from clients.bench.timeline import timeline


def result(
    speed: float = 1.0, *, count: int = 60, seed: int = 1, label: str = "a", **more: Any
) -> dict[str, Any]:
    """A closed loop of one user on a server that is `speed` times as fast as another."""
    rng = random.Random(seed)
    records = []
    now = 0.0
    for _ in range(count):
        ttft = rng.uniform(0.08, 0.12) / speed
        one = record(sent=now, ttft=ttft, gap=rng.uniform(0.009, 0.011) / speed, count=20)
        records.append(one)
        now = one.end or 0.0
    return {
        "date": "20260101-000000", "label": label, "model_id": "m", "dataset": "random",
        "num_prompts": count, "request_rate": "inf", "max_concurrency": 1, "url": "http://x",
        "pace": "at most 1 at once", "exact_lengths": True, "server_metrics": None,
        **summarise(records, now), "timeline": timeline(records, now), **details(records), **more,
    }  # fmt: skip


def save(folder: Path, name: str, data: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps(data))
    return str(path)


def test_a_real_difference_is_told_with_an_interval() -> None:
    rows = {row.figure: row for row in compare_runs(result(), result(1.25, seed=2), resamples=200)}
    throughput, ttft = rows["output tokens/s"], rows["TTFT median, ms"]
    assert throughput.ratio == pytest.approx(1.25, rel=0.03)
    assert throughput.low < 1.25 < throughput.high
    assert throughput.high - throughput.low < 0.1
    assert (throughput.verdict, ttft.verdict) == ("better", "better")
    assert ttft.ratio == pytest.approx(0.8, rel=0.05)
    assert ttft.low < 0.8 < ttft.high


def test_the_same_server_twice_is_no_difference() -> None:
    for row in compare_runs(result(), result(seed=2), resamples=50):
        assert row.verdict == "" or abs(row.ratio - 1) < 0.02


def test_what_is_offered_has_no_interval() -> None:
    """In an open loop throughput is what was sent."""
    offered = {"request_rate": 2.0, "max_concurrency": None}
    one = result(**offered)
    rows = {row.figure: row for row in compare_runs(one, one, resamples=50)}
    assert rows["output tokens/s"].low != rows["output tokens/s"].low  # NaN
    assert rows["TTFT median, ms"].low <= 1


def test_the_command_prints_ratios_and_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save(tmp_path, "a.json", result())
    other = save(tmp_path, "b.json", result(0.5, label="b", max_concurrency=2))
    assert main(["compare", base, other, "--resamples", "50"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"output tokens/s .* 0\.50\d .* worse", printed)
    assert "most at once differs: 1 and 2" in printed


def test_a_result_of_vllm_bench_serve_can_be_compared(tmp_path: Path) -> None:
    """It has no bins, no times per token, 0 where a request failed, and perhaps no lists."""
    ours = result()
    vllm = {
        key: value
        for key, value in result(seed=3).items()
        if key not in ("timeline", "tpots", "errors_by_kind", "label", "pace")
    }
    vllm["ttfts"] = [*vllm["ttfts"], 0.0]
    for key in ("latencies", "output_lens"):
        vllm[key] = [*vllm[key], 0]
    vllm["itls"] = [*vllm["itls"], []]
    vllm["start_times"] = [*vllm["start_times"], 0.0]
    detailed = read_results(Path(save(tmp_path, "vllm.json", vllm)))
    assert detailed.name == "vllm"
    assert len(compare_runs(ours, detailed.runs[0], resamples=20)) > 8
    assert "<svg" in render_report([detailed])
    for key in ("ttfts", "itls", "latencies", "output_lens", "start_times"):
        del vllm[key]
    rows = compare_runs(ours, vllm, resamples=20)
    assert all(row.low != row.low for row in rows)  # ratios, but no intervals


def test_sweeps_are_compared_where_they_meet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sweep(*values: int) -> dict[str, Any]:
        runs = [result(max_concurrency=value, count=10) for value in values]
        return {"sweep": "concurrency", "runs": runs}

    one, two = save(tmp_path, "1.json", sweep(1, 4)), save(tmp_path, "2.json", sweep(4, 16))
    assert main(["compare", one, two, "--resamples", "20"]) == 0
    printed = capsys.readouterr().out
    assert "concurrency 4" in printed
    assert "concurrency 1\n" not in printed
    assert main(["compare", one, save(tmp_path, "3.json", sweep(64))]) == 2
    assert main(["compare", one, save(tmp_path, "4.json", result())]) == 2


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"runs": []}'])
def test_a_file_that_is_no_result_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["compare", str(path), str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none"), "--html", "x"]) == 2


def test_the_report_is_one_file_that_asks_for_nothing_else(tmp_path: Path) -> None:
    page = render_report([ResultFile("one", (result(),))])
    assert page.count("<svg") == 7
    assert not re.search(r"(src|href)=|@import|url\(", page)
    assert "prefers-color-scheme:dark" in page
    assert "2026-01-01 00:00:00" in page
    assert "<th>p99</th>" in page
    for script in re.findall(r'<script type="application/json">(.*?)</script>', page):
        assert json.loads(script)["series"]


def test_what_servers_and_users_name_cannot_break_the_page() -> None:
    evil = '"><script>alert(1)</script>'
    run = {**result(label=evil, model_id=evil, count=5), "command": [evil], "prompt_source": evil}
    run["errors_by_kind"], run["errors"] = {evil: 1}, [f"{evil}: {evil}"]
    pages = [
        render_report([ResultFile(evil, (run,))]),
        render_report([ResultFile(evil, (run,)), ResultFile(evil, (result(),))]),
    ]
    for page in pages:
        assert "<script>alert" not in page


def test_several_results_stand_side_by_side(tmp_path: Path) -> None:
    files = [save(tmp_path, f"{n}.json", result(n, label=f"run {n}")) for n in (1, 2, 3)]
    out = tmp_path / "all.html"
    assert main(["report", *files, "--html", str(out)]) == 0
    page = out.read_text()
    assert "run 3 beside run 1" in page
    assert "better" in page


def test_a_sweep_has_curves_and_a_table() -> None:
    runs = tuple(result(max_concurrency=value, count=10) for value in (1, 4, 16))
    page = render_report([ResultFile("s", runs, "concurrency")])
    assert "What throughput costs" in page
    assert page.count("<tr") > 6


def test_runs_in_which_nothing_was_answered_still_have_a_page() -> None:
    nothing = {**result(count=5), **summarise([failed()], 1.0), **details([failed()])}
    nothing["timeline"] = timeline([failed()], 1.0)
    assert "http 500" in render_report([ResultFile("n", (nothing,))])
    rows = compare_runs(nothing, result(count=5), resamples=20)
    assert all(row.low != row.low for row in rows)


def test_plots_are_written_as_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = save(tmp_path, "a.json", result())
    runs = [result(max_concurrency=value, count=10) for value in (1, 4)]
    sweep = save(tmp_path, "s.json", {"sweep": "concurrency", "runs": runs})
    assert main(["report", one, "--png", str(tmp_path / "p")]) == 0
    assert main(["report", sweep, "--png", str(tmp_path / "p")]) == 0
    for name in ("latency", "timeline", "sweep"):
        assert (tmp_path / f"p-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    path = save(tmp_path, "a.json", result(count=3))
    assert main(["report", path, "--png", str(tmp_path / "p")]) == 2
    assert "pip install 'octavo[bench]'" in capsys.readouterr().err
