"""`octavo bench` as a user runs it: against a server of scripted replies, over real sockets.

Times are bounded from below by what the server waited, and checked closely against the moments at
which the server itself sent: both sides read one clock.
"""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_model import FakeModel, answer, usage_chunk
from scripted_server import Exchange, ScriptedServer, chat_chunk, event, text_chunk

from clients.bench import main
from clients.bench.flags import read_options
from clients.bench.plan import BadInput

Serve = Callable[..., ScriptedServer]
ROOT = Path(__file__).parents[3]


def bench(server: ScriptedServer, folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    path = folder / "result.json"
    code = main(["--url", server.url, "--json", str(path), "--no-progress", *flags])
    return code, json.loads(path.read_text())


def test_a_run_prints_and_saves_its_figures(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(FakeModel(answer))
    prefix = str(tmp_path / "out")
    code, result = bench(
        server, tmp_path, "-n", "12", "-c", "3", "--output-len", "5", "--input-len", "20",
        "--csv", prefix + ".csv", "--html", prefix + ".html", "--metadata", "commit=abc",
        "--label", "first",
    )  # fmt: skip
    assert code == 0
    assert (result["completed"], result["failed"]) == (12, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (240, 60)
    assert (result["backend"], result["model_id"], result["commit"]) == ("openai", "tiny", "abc")
    assert (result["request_rate"], result["max_concurrency"]) == ("inf", 3)
    printed = capsys.readouterr()
    assert "12 answered" in printed.out
    assert "to first text (TTFT)" in printed.out
    assert "no /metrics of a known kind" in printed.out
    assert "prompt lengths are exact: 19000 token ids" in printed.err
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["output_tokens"] for row in rows] == ["5"] * 12
    assert all(float(row["ttft_ms"]) > 0 for row in rows)
    assert "first" in (tmp_path / "out.html").read_text()


def test_first_text_is_measured_not_the_first_chunk(serve: Serve, tmp_path: Path) -> None:
    """A70 over a socket: role at once, text after 300 ms, tokens 20 ms apart."""
    sent: list[list[float]] = []

    def generate(exchange: Exchange, number: int) -> None:
        moments = []
        exchange.begin()
        exchange.event(chat_chunk({"role": "assistant", "content": ""}))
        time.sleep(0.3)
        for _ in range(5):
            moments.append(time.monotonic())
            exchange.event(chat_chunk({"content": "x"}))
            time.sleep(0.02)
        exchange.event(chat_chunk({}, "stop"))
        exchange.event(usage_chunk(20, 5))
        exchange.event("[DONE]")
        exchange.end()
        sent.append(moments)

    server = serve(FakeModel(generate))
    code, result = bench(server, tmp_path, "-n", "6", "-c", "1", "--endpoint", "chat")
    assert code == 0
    assert min(result["ttfts"]) >= 0.3
    # By the server's own clock; the least of several, since any one may be held up.
    spans = [moments[-1] - moments[0] for moments in sent]
    errors = [abs(sum(gaps) - span) for gaps, span in zip(result["itls"], spans, strict=True)]
    assert min(errors) < 0.005
    assert min(gap for gaps in result["itls"] for gap in gaps) < 0.3


def flaky(exchange: Exchange, number: int) -> None:
    """A71: half are errors, a tenth end without text."""
    if number % 2:
        exchange.fail(503, "overloaded")
    elif number % 10 == 0:
        exchange.stream(text_chunk("", "stop"), usage_chunk(10, 1))
    else:
        answer(exchange, number)


@pytest.mark.parametrize(
    ("limit", "code"), [("0", 1), ("11", 1), ("12", 0), ("59%", 1), ("60%", 0)]
)
def test_errors_are_apart_and_decide_the_exit_code(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, code: int
) -> None:
    server = serve(FakeModel(flaky))
    flags = ("-n", "20", "-c", "1", "--output-len", "3", "--max-errors", limit)
    exit_code, result = bench(server, tmp_path, *flags)
    assert exit_code == code
    assert result["errors_by_kind"] == {"http 503": 10, "empty answer": 2}
    assert result["completed"] == 8
    assert min(ttft for ttft in result["ttfts"] if ttft is not None) > 0
    assert result["total_output_tokens"] == 24
    assert "10 failed: http 503 (it is overloaded)" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "-n", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("octavo bench: no connection to http://127.0.0.1:9")
    assert error.count("\n") == 1


def test_a_model_that_is_not_served_is_said_so(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    def lists_another(exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            exchange.reply(200, {"data": [{"id": "tiny"}]})
        else:
            exchange.reply(404, {"error": {"message": "the model 'nope' does not exist"}})

    assert main(["--url", serve(lists_another).url, "--model", "nope", "-n", "1"]) == 2
    assert "the model 'nope' does not exist" in capsys.readouterr().err


def test_every_way_a_stream_can_break_has_its_kind(serve: Serve, tmp_path: Path) -> None:
    def cut(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(text_chunk("x"))
        exchange.hang_up()

    def no_done(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(text_chunk("x"))
        exchange.end()

    def reset(exchange: Exchange) -> None:
        exchange.reset()

    def inside(exchange: Exchange) -> None:
        exchange.stream(text_chunk("x"), {"error": {"message": "out of pages"}})

    ways = [cut, no_done, reset, inside, lambda e: e.reply(200, {"choices": []})]

    def generate(exchange: Exchange, number: int) -> None:
        ways[number](exchange)

    server = serve(FakeModel(generate))
    code, result = bench(server, tmp_path, "-n", "5", "-c", "1")
    assert code == 1
    assert [text.partition(":")[0] for text in result["errors"]] == [
        "broken stream", "broken stream", "broken connection", "error event", "bad reply",
    ]  # fmt: skip


def test_a_server_that_says_nothing_is_a_timeout(serve: Serve, tmp_path: Path) -> None:
    server = serve(FakeModel(lambda exchange, number: exchange.wait_gone()))
    code, result = bench(server, tmp_path, "-n", "1", "--timeout", "0.5")
    assert code == 1
    assert [text.partition(":")[0] for text in result["errors"]] == ["timeout"]


def test_a_sweep_is_one_command_with_new_prompts_each_time(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(FakeModel(answer))
    flags = ("-n", "6", "--output-len", "2", "--num-warmups", "2", "--seed", "5")
    code, result = bench(server, tmp_path, "--sweep", "concurrency=1,2,4", *flags)
    assert code == 0
    assert result["sweep"] == "concurrency"
    assert [run["max_concurrency"] for run in result["runs"]] == [1, 2, 4]
    assert all(run["completed"] == 6 for run in result["runs"])
    prompts = [e.body for e in server.exchanges if b'"stream":true' in e.body]
    assert len(prompts) == len(set(prompts)) == 3 * (6 + 2)
    assert "sweep over concurrency" in capsys.readouterr().out


def test_the_servers_counters_are_shown(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = "octavo:num_preemptions_total {count}\noctavo:prompt_tokens_total 5\n"
    server = serve(FakeModel(answer, metrics))
    _, result = bench(server, tmp_path, "-n", "7", "--output-len", "2")
    assert result["server_metrics"]["preemptions"] == 7
    assert "preemptions, server" in capsys.readouterr().out


def test_secrets_do_not_reach_the_result(serve: Serve, tmp_path: Path) -> None:
    server = serve(FakeModel(answer))
    flags = ("--api-key", "sk-1", "--header", "X-Key=sk-2", "--header=X-More=sk-3")
    bench(server, tmp_path, "-n", "2", "--output-len", "2", *flags)
    saved = (tmp_path / "result.json").read_text()
    assert "sk-" not in saved
    streamed = next(e for e in server.exchanges if b'"stream":true' in e.body)
    assert streamed.headers["authorization"] == "Bearer sk-1"
    assert streamed.headers["x-more"] == "sk-3"


def test_progress_is_told_in_plain_lines_where_there_is_no_terminal(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(FakeModel(answer))
    assert main(["--url", server.url, "-n", "3", "--output-len", "2"]) == 0
    error = capsys.readouterr().err
    assert "at most 16 at once" in error
    assert "\x1b[" not in error


def test_quiet_says_nothing(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(serve(FakeModel(answer)), tmp_path, "-n", "3", "--output-len", "2", "-q")[0] == 0
    assert capsys.readouterr() == ("", "")


def test_prompts_that_lack_usage_are_counted_by_pieces(serve: Serve, tmp_path: Path) -> None:
    def generate(exchange: Exchange, number: int) -> None:
        exchange.begin()
        exchange.piece(event(text_chunk("a")) + event(text_chunk("b", "stop")) + event("[DONE]"))
        exchange.end()

    code, result = bench(serve(FakeModel(generate)), tmp_path, "-n", "2")
    assert code == 0
    assert result["requests_without_usage"] == 2
    assert result["output_lens"] == [2, 2]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--input-len", "x"], "'x' is no length"),
        (["--goodput", "itl:5"], "--goodput 'itl:5'"),
        (["--sweep", "users=1"], "must begin with concurrency or rate="),
        (["--sweep", "concurrency=1.5"], "whole number"),
        (["--sweep", "concurrency=2", "-c", "4"], "exclude each other"),
        (["--sweep", "rate=2", "-r", "4"], "exclude each other"),
        (["--max-errors", "many"], "--max-errors 'many'"),
        (["--max-errors", "101%"], "at most 100%"),
        (["--endpoint", "embeddings"], "--endpoint 'embeddings'"),
        (["--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["--header", "X"], "must be like NAME=VALUE"),
        (["--ramp-up-start-rps", "1"], "need --ramp-up-strategy"),
        (["--length-scale", "1/0"], "--length-scale '1/0'"),
        (["--metric-percentiles", "50,101"], "must lie in 0 to 100"),
        (["-n", "0"], "--num-prompts must be above 0, got 0"),
        (["--dataset", "mooncake"], "--dataset-path"),
        (["-c", "0"], "--max-concurrency must be above 0"),
        (["--request-rate", "0"], "--request-rate must be above 0"),
        (["--timeout", "-1"], "--timeout must not be negative"),
        (["--num-warmups", "-1"], "--num-warmups must not be negative"),
        (["--header", "X=\u00e9"], "the header X holds characters"),
        (["--json", "no/such/folder/x.json"], "cannot write no/such/folder/x.json: no folder"),
        (["--output", "/"], "must be the beginning of a file's name"),
        (["--url", "localhost:8000"], "--url must be like http://host:port"),
        (["--url", "http://h:99999"], "--url must be like http://host:port"),
        (["--url", "http://me:secret@h:1"], "--url must hold no password"),
        (["--url", "http://h:1/v1?key=1"], "--url must end at its path"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(
    serve: Serve, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    url = serve(FakeModel(answer)).url
    assert main(["--url", url, "--no-progress", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]


def test_a_run_without_flags_is_a_closed_loop_of_new_prompts() -> None:
    one, two = read_options([]), read_options([])
    assert one.pace.concurrency == 16
    assert not one.pace.is_open
    assert one.data.seed != two.data.seed
    assert read_options(["--dataset", "mooncake"]).pace.from_trace
    assert not read_options(["--dataset", "mooncake", "-c", "4"]).pace.from_trace
    assert read_options(["--dataset", "conversations"]).is_chat


def test_a_duration_needs_no_number_of_prompts(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = bench(
        serve(FakeModel(answer)), tmp_path, "--duration", "1", "-r", "200", "--output-len", "1"
    )
    assert code == 0
    assert result["completed"] == result["num_prompts"] > 100
    assert "not sent" not in capsys.readouterr().out
    assert read_options(["--duration", "1", "-n", "7"]).data.num_prompts == 7


def test_a_url_of_other_tools_will_do() -> None:
    assert read_options(["--url", "http://h:1/v1/"]).url == "http://h:1"
    with pytest.raises(BadInput):
        read_options(["--request-rate", "nan"])


def test_the_load_test_needs_the_base_install_only() -> None:
    script = (
        "import sys, clients.bench.report, clients.bench.compare\n"
        "heavy = {'numpy', 'matplotlib', 'torch', 'transformers', 'fastapi', 'orjson'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    assert raised.value.code == 0
    printed = capsys.readouterr().out
    assert "octavo bench --sweep concurrency=1,4,16,64" in printed
    assert "octavo bench compare before.json after.json" in printed
