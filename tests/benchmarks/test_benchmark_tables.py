"""The comparison of servers: its table, and the servers that it starts and stops."""

import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from benchmarks.run import main
from benchmarks.servers import Launch, RunningServer, ServerError, free_port
from benchmarks.tables import (
    BEGIN,
    END,
    Entrant,
    Pass,
    Table,
    markdown,
    spread,
    write_between_markers,
)
from benchmarks.workloads import WORKLOADS


def result(speed: float, hits: float | None = 0.0, failed: int = 0) -> dict[str, Any]:
    return {
        "output_throughput": speed,
        "median_ttft_ms": 100.0,
        "median_itl_ms": 20.0,
        "prefix_hit_rate": hits,
        "server_metrics": None,
        "completed": 6,
        "failed": failed,
    }


def test_the_table_has_medians_ranges_and_ratios_within_passes() -> None:
    counted = {**result(20, None), "server_metrics": {"prefix_hit_rate": 0.25}}
    passes = [
        Pass(0, "W1", "Octavo", result(100)),
        Pass(0, "W1", "vLLM", result(50, None)),
        Pass(1, "W1", "Octavo", result(60)),
        Pass(1, "W1", "vLLM", counted),
        Pass(0, "W2", "Octavo", result(10, failed=3)),
    ]
    servers = [Entrant("Octavo", "1.0"), Entrant("vLLM", "vLLM 9")]
    notes = ["W2, vLLM: not done after 5 s"]
    text = markdown(Table(servers, {"W1": "one", "W2": "two"}, passes, notes, "make bench"))
    one, two, three, four = (line for line in text.splitlines() if line.startswith(("| W", "|  |")))
    assert "| W1: one | Octavo | **80.0 (60.0 to 100.0)** | 100 (100 to 100) |" in one
    assert one.endswith("| 0.0% | 0 | 2 | - |")
    assert "**35.0 (20.0 to 50.0)**" in two
    assert two.endswith("| 25.0% | 0 | 2 | 2.50 (2.00 to 3.00) |")
    assert three.endswith("| 3 of 9 | 1 | - |")
    assert four == "|  | vLLM | - | - | - | - | - | 0 | - |"
    assert "```bash\nmake bench\n```" in text
    assert text.endswith("- W2, vLLM: not done after 5 s")
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_one_value_has_no_range() -> None:
    assert spread([5.0]) == "5.0"


def test_only_what_is_between_the_markers_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between_markers(page, "new")
    write_between_markers(page, "newer")
    assert page.read_text() == f"before\n{BEGIN}\nnewer\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="has no line"):
        write_between_markers(page, "x")


def test_the_page_of_the_docs_has_the_markers() -> None:
    page = Path(__file__).parents[2] / "docs" / "performance.md"
    text = page.read_text()
    assert text.index(BEGIN) < text.index(END)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_flags_that_octavo_bench_takes(name: str) -> None:
    from clients.bench.flags import read_options

    workload = WORKLOADS[name]
    options = read_options(workload.octavo_flags())
    assert options.pace.concurrency == workload.concurrency
    assert options.data.num_prompts == workload.num_prompts
    assert workload.scaled(0.01) == min(workload.concurrency, workload.num_prompts)
    assert workload.longest <= 4096


def http_server(port: int) -> Launch:
    return Launch(
        "plain", (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"), {}, "/"
    )


def test_a_paused_server_does_not_answer_until_it_is_resumed(tmp_path: Path) -> None:
    port = free_port()
    server = RunningServer(http_server(port), port, tmp_path / "log")
    try:
        server.wait_ready(60)
        server.pause()
        with pytest.raises(TimeoutError):
            urlopen(server.url, timeout=0.3)
        server.resume()
        assert urlopen(server.url, timeout=60).status == 200
    finally:
        server.stop()
    server.stop()  # twice is once
    with pytest.raises(OSError):
        urlopen(server.url, timeout=5)


def test_a_server_that_ends_at_once_is_said_so(tmp_path: Path) -> None:
    launch = Launch("broken", (sys.executable, "-c", "raise SystemExit(3)"))
    server = RunningServer(launch, free_port(), tmp_path / "log")
    began = time.monotonic()
    with pytest.raises(ServerError, match="broken ended at start; see"):
        server.wait_ready(600)
    assert time.monotonic() - began < 600


def test_peers_need_to_be_told_where_their_model_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.servers.Vllm.installed", lambda: True)
    with pytest.raises(SystemExit, match="vLLM needs --model-dir"):
        main(["--peers", "--results", str(tmp_path)])
