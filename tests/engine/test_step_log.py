"""The step log of a running engine says what was computed; a bad place for it is refused."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from conftest_types import TinyModelDir

from engine.build import build_engine
from engine.config import EngineConfig, EngineError
from scheduler import Request, SamplingParams
from server.simulate.fit import read_step_log

PROMPT, ANSWER = 21, 6


def config_for(folder: Path, log: Path, **settings: object) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=4,
        num_pages=64,
        threads=1,
        self_check=False,
        step_log=log,
        **settings,  # type: ignore[arg-type]
    )


def serve(config: EngineConfig, count: int) -> None:
    engine = build_engine(config, lambda progress: None)
    for number in range(count):
        engine.add(
            Request(
                request_id=str(number),
                prompt_token_ids=tuple(range(number * 30, number * 30 + PROMPT)),
                params=SamplingParams(temperature=0.0),
                max_tokens=ANSWER,
                seed=0,
            )
        )
    while engine.has_work:
        engine.step()


def test_the_log_adds_up_to_what_was_served(tmp_path: Path, tiny_model_dir: TinyModelDir) -> None:
    log = tmp_path / "steps.jsonl"
    serve(config_for(tiny_model_dir("llama"), log, max_num_batched_tokens=16), 3)
    first, *lines = map(json.loads, log.read_text().splitlines())
    assert (first["octavo_step_log"], first["num_pages"]) == (1, 64)
    assert sum(line["prefill_tokens"] + line["decode_tokens"] for line in lines) == 3 * (
        PROMPT + ANSWER - 1
    )
    assert sum(line["samples"] for line in lines) == 3 * ANSWER
    assert all(line["prefill_tokens"] + line["decode_tokens"] <= 16 for line in lines)
    # The last step has the last token of each answer that is still in it, and its whole context.
    assert lines[-1]["context_tokens"] == lines[-1]["sequences"] * (PROMPT + ANSWER - 1)
    for line in lines:  # what single tokens read beside a prompt, and nothing where there is none
        assert (line["mixed_context_tokens"] > 0) == (
            line["prefill_tokens"] > 0 and line["decode_tokens"] > 0
        )
        assert line["mixed_context_tokens"] <= line["context_tokens"]
    assert lines[0]["gap_ms"] is None and all(line["gap_ms"] >= 0 for line in lines[1:])
    assert all(b["t"] >= a["t"] + a["ms"] / 1000 - 1e-3 for a, b in pairwise(lines))


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path, tiny_model_dir: TinyModelDir) -> None:
    log = tmp_path / "steps.jsonl"
    for count in (1, 2):
        serve(config_for(tiny_model_dir("llama"), log), count)
    assert log.read_text().count("octavo_step_log") == 2
    _, steps = read_step_log(log)
    assert sum(step.work.samples for step in steps) == 2 * ANSWER


def test_a_log_that_cannot_be_opened_stops_the_start(
    tmp_path: Path, tiny_model_dir: TinyModelDir
) -> None:
    with pytest.raises(EngineError, match=r"the step log .* cannot be written: Is a directory"):
        build_engine(config_for(tiny_model_dir("llama"), tmp_path), lambda progress: None)
