"""What is sent: made-up prompts, files of prompts, traces; and files that are wrong."""

import gzip
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clients.bench.datasets import DatasetOptions, load_workload
from clients.bench.lengths import Lengths
from clients.bench.plan import BadInput, Session
from clients.bench.prompts import PromptMaker, Vocabulary

WORDS = tuple(f"w{number}" for number in range(500))
VOCABULARY = Vocabulary("test", exact=True, words=WORDS, openings=WORDS, overhead=1)
TRACES = Path(os.environ.get("OCTAVO_TRACES", Path(__file__).parents[4] / "shared" / "traces"))


def sessions(name: str, chat: bool = False, seed: int = 1, **options: Any) -> list[Session]:
    maker = PromptMaker(VOCABULARY, seed)
    data = DatasetOptions(seed=seed, **options)
    return list(load_workload(name, data, maker, chat=chat).sessions)


def words(session: Session, turn: int = 0) -> list[str]:
    content = session.turns[turn].make_content()
    assert isinstance(content, str)
    return content.split()


def common(one: list[str], two: list[str]) -> int:
    """How many words both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )


def test_random_prompts_have_their_length_and_nothing_in_common() -> None:
    made = sessions("random", num_prompts=200, input_len=Lengths(20, 40))
    for session in made:
        # What the server adds (here one token) is counted.
        assert len(words(session)) == session.turns[0].input_tokens - 1  # type: ignore[operator]
    assert len({words(session)[0] for session in made}) == 200
    assert {session.turns[0].output_tokens for session in made} == {128}


def test_the_same_seed_makes_the_same_prompts() -> None:
    one, two, other = (
        [words(session) for session in sessions("random", num_prompts=5, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert one == two
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_token_ids_serve_as_well_as_words() -> None:
    vocabulary = Vocabulary("ids", exact=True, ids=tuple(range(1000, 1500)))
    maker = PromptMaker(vocabulary, 1)
    options = DatasetOptions(num_prompts=3, input_len=Lengths(50, 50))
    for session in load_workload("random", options, maker, chat=False).sessions:
        content = session.turns[0].make_content()
        assert len(content) == 50
        assert all(isinstance(token, int) and 1000 <= token < 1500 for token in content)


def test_prefixes_are_shared_along_a_tree() -> None:
    """Two levels of two: 100 + 100 tokens; all leaves equally often."""
    made = sessions(
        "prefix", num_prompts=40, prefix_len=200, prefix_groups=2, prefix_depth=2,
        input_len=Lengths(10, 10), output_len=Lengths(3, 3),
    )  # fmt: skip
    prompts = [words(session) for session in made]
    assert {len(prompt) for prompt in prompts} == {209}
    shared = [common(a, b) for i, a in enumerate(prompts) for b in prompts[:i]]
    assert {count for count in shared if count < 100} == {0}
    assert any(100 <= count < 110 for count in shared)
    assert any(count >= 200 for count in shared)
    leaves = {tuple(prompt[:200]) for prompt in prompts}
    assert len(leaves) == 4
    assert all(sum(tuple(p[:200]) == leaf for p in prompts) == 10 for leaf in leaves)


def test_conversations_share_their_system_text_and_think() -> None:
    made = sessions(
        "conversations", num_prompts=6, turns=Lengths(2, 4), system_len=30,
        input_len=Lengths(10, 10), think_time=Lengths(500, 500),
    )  # fmt: skip
    assert {len(session.turns) for session in made} <= {2, 3, 4}
    first, second = words(made[0]), words(made[1])
    assert len(first) == 40
    assert common(first, second) == 30
    assert all(turn.think == 0.5 for session in made for turn in session.turns)


def write(folder: Path, name: str, *lines: Any) -> Path:
    path = folder / name
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_a_file_of_prompts_may_mix_its_kinds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "prompts.jsonl.gz",
        {"prompt": "one", "output_len": 5},
        "",
        {"messages": [{"role": "user", "content": "two"}], "max_tokens": 6},
        {"turns": ["three", "four"], "think_time": 2.5, "id": 9},
    )
    made = sessions("prompts", chat=True, path=path, output_len=Lengths(7, 7))
    assert [s.turns[0].output_tokens for s in made] == [5, 6, 7]
    assert made[1].turns[0].make_content() == [{"role": "user", "content": "two"}]
    assert [turn.make_content() for turn in made[2].turns] == ["three", "four"]
    assert made[2].turns[1].think == 2.5
    assert len(sessions("prompts", chat=True, path=path, limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: no JSON"),
        ("[1]", "line 2: must be an object, got [1]"),
        ({}, "line 2: needs one of prompt, messages, turns; has none"),
        ({"prompt": "a", "turns": ["b"]}, "line 2: needs one of"),
        ({"prompt": 5}, "line 2: prompt must be a text"),
        ({"prompt": ""}, "line 2: prompt must be a text that is not empty"),
        ({"turns": []}, "line 2: turns must be a list of texts"),
        ({"turns": ["a", 1]}, "line 2: every turn must be a text"),
        ({"messages": [{"content": "a"}]}, "line 2: every message must be an object with a role"),
        ({"prompt": "a", "output_len": 0}, "line 2: output_len must be at least 1, got 0"),
        ({"prompt": "a", "output_len": 1.5}, "line 2: output_len must be a whole number"),
        ({"prompt": "a", "think_time": "soon"}, 'line 2: think_time must be a number, got "soon"'),
    ],
)
def test_a_wrong_line_of_prompts_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = write(tmp_path, "bad.jsonl", {"prompt": "fine"}, line)
    with pytest.raises(BadInput) as raised:
        sessions("prompts", chat=True, path=path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_messages_need_a_chat(tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", {"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(BadInput, match="line 1: messages are for chats"):
        sessions("prompts", path=path)


@pytest.mark.parametrize("name", ["prompts", "mooncake", "azure", "burstgpt"])
def test_files_that_are_not_there_or_empty_are_said_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        sessions(name, path=tmp_path / "none")
    with pytest.raises(BadInput, match="--dataset-path"):
        sessions(name)
    with pytest.raises(BadInput):
        sessions(name, path=write(tmp_path, "empty"))
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"no gzip at all")
    with pytest.raises(BadInput, match="cannot read"):
        sessions(name, path=broken)


def mooncake_row(time: float, length: int, ids: list[int], output: int = 4) -> dict[str, Any]:
    return {"timestamp": time, "input_length": length, "output_length": output, "hash_ids": ids}


def test_mooncake_prompts_share_exactly_the_blocks_that_they_name(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "moon.jsonl",
        mooncake_row(0, 1100, [1, 2, 3]),
        mooncake_row(500, 1024, [1, 2]),
        mooncake_row(2000, 1300, [1, 4, 5]),
        mooncake_row(2500, 600, [7, 8]),
    )
    made = sessions("mooncake", path=path)
    prompts = [words(session) for session in made]
    assert [len(prompt) for prompt in prompts] == [1099, 1023, 1299, 599]
    assert common(prompts[0], prompts[1]) == 1023
    assert common(prompts[0], prompts[2]) == 512
    assert common(prompts[0], prompts[3]) == 0
    assert [session.arrival for session in made] == [0.0, 0.5, 2.0, 2.5]


def test_scaling_lengths_keeps_what_is_shared(tmp_path: Path) -> None:
    path = write(
        tmp_path, "moon.jsonl", mooncake_row(0, 1100, [1, 2, 3]), mooncake_row(0, 1300, [1, 4, 5])
    )
    made = sessions("mooncake", path=path, length_scale=1 / 32, speedup=2.0)
    prompts = [words(session) for session in made]
    assert [len(prompt) + 1 for prompt in prompts] == [34, 41]
    assert common(prompts[0], prompts[1]) == 16


def test_coarse_ticks_are_spread_unless_told_otherwise(tmp_path: Path) -> None:
    rows = [mooncake_row(time, 10, [time + i]) for time in (0, 3000, 6000) for i in range(3)]
    path = write(tmp_path, "moon.jsonl", *rows)
    spread = [session.arrival for session in sessions("mooncake", path=path)]
    assert spread == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7, 8])
    as_is = [s.arrival for s in sessions("mooncake", path=path, spread_ticks=False, speedup=3)]
    assert as_is == pytest.approx([0, 0, 0, 1, 1, 1, 2, 2, 2])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (mooncake_row(0, 1100, [1, 2]), "line 1: 2 hash_ids for 1100 tokens; blocks of 512 make 3"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1}, "line 1: hash_ids must be"),
        (mooncake_row(-5, 5, [1]), "line 1: timestamp must be at least 0, got -5"),
        ({"input_length": "x"}, 'line 1: input_length must be a number, got "x"'),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as raised:
        sessions("mooncake", path=write(tmp_path, "moon.jsonl", row))
    assert said in str(raised.value)


def test_azure_rows_have_times_and_lengths(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,374,44",
        "2023-11-16 18:17:04.0319600,396,109",
        "2023-11-16 18:17:05.0000000,5000,0",
        "2023-11-16 18:17:06.4799600,5000,9",
    )
    made = sessions("azure", path=path, max_input_len=1000)
    assert [session.turns[0].input_tokens for session in made] == [374, 396]
    assert [session.turns[0].output_tokens for session in made] == [44, 109]
    assert [session.arrival for session in made] == pytest.approx([0.0, 0.052])


def test_times_with_a_zone_and_without_are_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the 2024 traces; clocks are set back in Berlin within these seconds."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        path = write(
            tmp_path, "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2024-10-27 00:59:59.5000000,1,1", "2024-10-27 01:00:00.009930+00:00,1,1",
            "2024-10-27 03:00:00.000000,1,1",
        )  # fmt: skip
        arrivals = [session.arrival for session in sessions("azure", path=path)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert arrivals == pytest.approx([0.0, 0.50993, 7200.5])


def test_an_archive_is_known_without_its_ending(tmp_path: Path) -> None:
    rows = [mooncake_row(place, 600, [place, 100 + place]) for place in range(300)]
    packed = write(tmp_path, "moon.jsonl.gz", *rows).read_bytes()
    path = tmp_path / "moon"
    path.write_bytes(packed)
    assert len(sessions("mooncake", path=path)) == 300
    path.write_bytes(packed[:-20])
    with pytest.raises(BadInput, match=r"cannot read .*moon beyond line \d+: "):
        sessions("mooncake", path=path)


def test_burstgpt_failures_are_left_out(tmp_path: Path) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path = write(
        tmp_path, "burst.csv", header, "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,0,1087,Conversation log", "118,GPT-4,417,276,693,API log",
    )  # fmt: skip
    maker = PromptMaker(VOCABULARY, 1)
    workload = load_workload("burstgpt", DatasetOptions(path=path), maker, chat=False)
    assert workload.num_requests == 2
    assert workload.notes == ("1 rows without prompt or answer left out",)
    assert [session.arrival for session in workload.sessions] == [0.0, 113.0]


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        ("azure", ["TIMESTAMP,Context", ""], "line 1: no column ContextTokens, GeneratedTokens"),
        ("azure", ["TIMESTAMP,ContextTokens,GeneratedTokens", "soon,1,2"], "line 2: TIMESTAMP"),
        ("azure", ["TIMESTAMP,ContextTokens,GeneratedTokens", "1,2"], "line 2: 2 values for 3"),
        ("burstgpt", ["Timestamp,Request tokens,Response tokens", "1,x,2"], 'got "x"'),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, name: str, lines: list[str], said: str) -> None:
    with pytest.raises(BadInput) as raised:
        sessions(name, path=write(tmp_path, "rows.csv", *lines))
    assert said in str(raised.value)


def sample(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no sample {path}")
    return path


def test_the_real_mooncake_sample_shares_as_much_as_its_ids() -> None:
    """An infinite cache of the prompts finds the share that the ids promise."""
    path = sample("mooncake_arxiv_1000.jsonl.gz")
    made = sessions("mooncake", path=path, limit=60, length_scale=1 / 32)
    seen: set[tuple[str, ...]] = set()
    hits = total = 0
    for session in made:
        prompt = words(session)
        blocks = [tuple(prompt[: end + 16]) for end in range(0, len(prompt), 16)]
        hits += 16 * sum(block in seen for block in blocks)
        total += len(prompt)
        seen.update(blocks)
    known: set[int] = set()
    ideal = asked = 0
    for line in gzip.decompress(path.read_bytes()).splitlines()[:60]:
        row = json.loads(line)
        ideal += 512 * sum(i in known for i in row["hash_ids"])
        asked += row["input_length"]
        known.update(row["hash_ids"])
    assert ideal / asked > 0.1
    assert hits / total == pytest.approx(ideal / asked, abs=0.02)


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("mooncake", "mooncake_synthetic.jsonl.gz", 200),
        ("azure", "azure2023_code.csv.gz", 200),
        ("burstgpt", "burstgpt1_first400.csv", 200),
        ("prompts", "prompts.jsonl.gz", 200),
    ],
)
def test_real_samples_can_be_read(name: str, file: str, count: int) -> None:
    made = sessions(name, chat=True, path=sample(file), limit=count)
    assert count * 0.9 <= len(made) <= count
    times = [session.arrival for session in made if session.arrival is not None]
    assert all(earlier <= later for earlier, later in pairwise(times))
