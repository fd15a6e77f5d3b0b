"""The load test against our own server over a tiny real model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest_types import TinyModelDir
from live_server import LiveServer, tiny_engine

from clients.bench import main
from engine.text import Tokenizer
from server.settings import ServerSettings


@pytest.fixture(scope="module")
def url(tiny_model_dir: TinyModelDir) -> Iterator[str]:
    folder = tiny_model_dir("llama")
    server = LiveServer(tiny_engine(folder), Tokenizer.load(folder), ServerSettings())
    yield server.base_url
    server.stop()


def bench(url: str, folder: Path, *flags: str) -> dict[str, Any]:
    path = folder / "result.json"
    assert main(["--url", url, "--json", str(path), "-q", *flags]) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_answers_have_exactly_the_length_asked_for(url: str, tmp_path: Path) -> None:
    """A72: 64 tokens in usage, whatever the model would have liked, and no marker in the text."""
    result = bench(
        url, tmp_path, "-n", "12", "-c", "4", "--input-len", "40", "--output-len", "64",
        "--save-texts",
    )  # fmt: skip
    assert result["output_lens"] == [64] * 12
    assert result["other_output_length"] == 0
    assert result["total_output_tokens"] == 12 * 64
    assert not any("<|im_end|>" in text for text in result["generated_texts"])
    assert result["max_concurrent_requests"] <= 4
    for ttft, latency, gaps in zip(
        result["ttfts"], result["latencies"], result["itls"], strict=True
    ):
        assert 0 < ttft < latency
        assert ttft + sum(gaps) <= latency + 0.01


def test_shared_prefixes_are_found_in_the_cache(url: str, tmp_path: Path) -> None:
    result = bench(
        url, tmp_path, "-n", "12", "-c", "2", "--dataset", "prefix", "--prefix-len", "100",
        "--prefix-groups", "2", "--input-len", "10", "--output-len", "4",
    )  # fmt: skip
    # Of 12 prompts two must compute the prefix, and two at once may both do so.
    assert result["prefix_hit_rate"] > 0.5


def test_conversations_grow_and_are_found_in_the_cache(url: str, tmp_path: Path) -> None:
    result = bench(
        url, tmp_path, "-n", "3", "-c", "3", "--dataset", "conversations", "--turns", "3",
        "--input-len", "12", "--output-len", "6", "--think-time", "1",
    )  # fmt: skip
    assert result["completed"] == 9
    assert result["output_lens"] == [6] * 9
    assert result["prefix_hit_rate"] > 0.3
    assert result["backend"] == "openai-chat"
    assert result["exact_lengths"] is False


def test_a_trace_is_replayed_at_its_times(url: str, tmp_path: Path) -> None:
    rows = [
        {"timestamp": 100 * i, "input_length": 1200, "output_length": 96, "hash_ids": [7, 8, i]}
        for i in range(9)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = bench(
        url, tmp_path, "--dataset", "mooncake", "--dataset-path", str(path),
        "--length-scale", "1/32", "--speedup", "2",
    )  # fmt: skip
    assert result["completed"] == 9
    assert result["output_lens"] == [3] * 9
    # Since the run began: any of them, the first too, may be late.
    assert all(start >= 0.05 * i - 0.001 for i, start in enumerate(result["start_times"]))
    assert result["prefix_hit_rate"] > 0.4


def test_prompts_from_a_file_run_to_the_models_end(url: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "hello world", "output_len": 5}, {"turns": ["one two", "three"]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = bench(
        url, tmp_path, "--dataset", "prompts", "--dataset-path", str(path), "--output-len", "4",
        "--ignore-eos", "--temperature", "0",
    )  # fmt: skip
    assert result["completed"] == 3
    assert sorted(result["output_lens"]) == [4, 4, 5]


def test_the_servers_own_errors_are_told_in_its_words(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", url, "-n", "2", "--input-len", "4000", "--no-progress"]) == 1
    printed = capsys.readouterr().out
    assert "2 failed: http 400" in printed
    assert "the context has 256" in printed
