"""`octavo simulate` as a user calls it: figures, files, and what it says of bad input."""

import csv
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from server.simulate import main

ROOT = Path(__file__).parents[2]
H100 = ("--model", "llama-3.1-8b", "--device", "h100")


@pytest.fixture
def azure(tmp_path):
    """A trace of 60 requests in Azure's format."""
    path = tmp_path / "azure.csv"
    chance = random.Random(1)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for second in range(60):
        prompt, answer = chance.randint(50, 900), chance.randint(5, 60)
        lines.append(f"2023-11-16 18:15:{second:02}.6805900,{prompt},{answer}")
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(capsys, *arguments):
    """The one line on stderr of a call that ends with code 2."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


class TestMemory:
    def test_the_defaults_show_the_well_known_figures(self, capsys, tmp_path):
        assert main(["memory", "--json", str(tmp_path / "memory.json")]) == 0
        data = json.loads((tmp_path / "memory.json").read_text())
        assert data["bytes_per_token"] == 2**19
        last = data["over_users"][-1]
        assert last["users"] == 100 and last["naive"]["reserved"] == 100 * 2**30
        wasted = last["naive"]["never_used"] / last["naive"]["reserved"]
        saved = (last["naive"]["reserved"] - last["paged"]["reserved"]) / 2**30
        assert wasted == pytest.approx(0.75, abs=0.03)
        assert saved == pytest.approx(75, abs=3)
        assert last["shared"]["reserved"] < last["paged"]["reserved"]
        out = capsys.readouterr().out
        assert "llama-2-7b" in out and "512 KiB a token" in out

    def test_a_shape_by_numbers_and_a_pool_to_fill(self, capsys):
        assert main(
            ["memory", "--num-layers", "2", "--num-kv-heads", "2", "--head-dim", "8",
             "--kv-cache-dtype", "float32", "--max-model-len", "64", "--tokens", "16",
             "--shared-tokens", "0", "--users", "1,4", "--fit", "64k"]
        ) == 0  # fmt: skip
        out = capsys.readouterr().out
        # 256 bytes a token: 256 tokens, 4 users of 64 reserved, 16 pages of 16.
        assert "hold 4 users by reserving, 16 paged, 16 shared" in " ".join(out.split())

    def test_users_of_a_trace(self, azure, capsys):
        arguments = ["memory", "--dataset", "azure", "--dataset-path", str(azure)]
        assert main([*arguments, "--users", "10", "--max-model-len", "960"]) == 0
        assert "llama-2-7b" in capsys.readouterr().out

    def test_plots_are_drawn_whole_or_not_at_all(self, tmp_path, capsys):
        png, svg = tmp_path / "memory.png", tmp_path / "memory.svg"
        assert main(["memory", "--users", "5", "--plot", str(png), str(svg)]) == 0
        assert png.read_bytes().startswith(b"\x89PNG") and b"<svg" in svg.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.png", "memory.svg"]
        line = refused(capsys, "memory", "--plot", str(tmp_path / "memory.pdf"))
        assert "must end in .png or .svg" in line

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--users", "0,5"), "--users must lie in 1 to 100000, got '0,5'"),
            (("--users", "many"), "--users must be like 1,10,100, got 'many'"),
            (("--head-dim", "64"), "--num-layers, --num-kv-heads and --head-dim belong together"),
            (("--model", "no-such-model"), "no folder, hub id (OWNER/NAME) or one of"),
            (("--tokens", "nonsense"), "is no length"),
            (("--shared-tokens", "2047"), "leaves no room below --max-model-len 2048"),
        ],
    )
    def test_bad_flags_are_named(self, capsys, flags, message):
        assert message in refused(capsys, "memory", *flags)


class TestServe:
    def test_the_result_has_every_key_of_a_measurement(self, azure, tmp_path, capsys):
        out = tmp_path / "out"
        flags = ["--dataset", "azure", "--dataset-path", str(azure), "-o", str(out)]
        assert main(["serve", *H100, *flags, "--goodput", "ttft:500", "tpot:50"]) == 0
        run = json.loads(out.with_suffix(".json").read_text())
        assert (run["completed"], run["failed"], run["num_prompts"]) == (60, 0, 60)
        assert run["good_share"] == 1.0
        for key in ("request_throughput", "output_throughput", "mean_ttft_ms", "p99_itl_ms",
                    "median_tpot_ms", "std_e2el_ms", "total_token_throughput"):  # fmt: skip
            assert run[key] > 0, key
        assert run["duration"] == pytest.approx(59, abs=2)
        assert len(run["ttfts"]) == 60
        assert sum(run["timeline"]["tokens_per_s"]) * run["timeline"]["width"] == pytest.approx(
            run["total_output_tokens"], rel=0.01
        )
        rows = list(csv.DictReader(out.with_suffix(".csv").read_text().splitlines()))
        assert len(rows) == 60 and all(float(row["ttft_ms"]) > 0 for row in rows)
        assert "<html" in out.with_suffix(".html").read_text()
        assert "simulated h100" in capsys.readouterr().out

    def test_it_lies_beside_a_measurement_in_compare(self, azure, tmp_path, capsys):
        from clients.bench import main as bench

        results = []
        for device in ("h100", "l4"):
            path = tmp_path / f"{device}.json"
            flags = ["--dataset", "azure", "--dataset-path", str(azure), "--json", str(path), "-q"]
            main(["serve", "--model", "llama-3.1-8b", "--device", device, *flags])
            results.append(str(path))
        assert bench(["compare", *results, "--resamples", "20"]) == 0
        assert "TPOT median" in capsys.readouterr().out

    def test_the_same_call_gives_the_same_figures(self, tmp_path):
        runs = []
        for name in ("a", "b"):
            path = tmp_path / f"{name}.json"
            flags = ["-n", "20", "-c", "4", "--input-len", "10-200", "--json", str(path), "-q"]
            assert main(["serve", *H100, *flags]) == 0
            runs.append(json.loads(path.read_text()))
        for run in runs:
            del run["date"], run["command"]
        assert runs[0] == runs[1]

    def test_a_sweep_and_a_fleet(self, tmp_path, capsys):
        path = tmp_path / "sweep.json"
        flags = ["--sweep", "concurrency=1,8", "-n", "16", "--replicas", "2", "--json", str(path)]
        assert main(["serve", *H100, *flags]) == 0
        data = json.loads(path.read_text())
        assert data["sweep"] == "concurrency"
        slow, fast = (run["output_throughput"] for run in data["runs"])
        assert fast > 2 * slow

    def test_a_load_that_is_refused_whole_is_a_failure_with_a_report(self, tmp_path, capsys):
        out = tmp_path / "out"
        flags = ["-n", "3", "--input-len", "500", "--max-model-len", "100", "-o", str(out)]
        assert main(["serve", *H100, *flags]) == 1
        run = json.loads(out.with_suffix(".json").read_text())
        assert (run["completed"], run["failed"], run["mean_ttft_ms"]) == (0, 3, None)
        assert "3 failed: refused (prompt and answer exceed 100 tokens)" in " ".join(
            capsys.readouterr().out.split()
        )
        assert main(["serve", *H100, *flags, "--max-errors", "3", "-q"]) == 0

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ((), "say what serves: --device NAME or --step-time FILE"),
            (("--device", "h100"), "--device needs --model"),
            ((*H100, "--max-model-len", "999999"), "--max-model-len 999999 exceeds 131072"),
            ((*H100, "--num-pages", "999999"), "999999 pages do not fit"),
            (("--model", "llama-2-70b", "--device", "l4"), "take a larger device"),
            (
                (*H100, "--shards", "2", "--request-rate", "1"),
                "at most the number of replicas, 1, got 2",
            ),
            ((*H100, "--shards", "2", "-c", "4"), "a closed loop (max_concurrency) needs"),
            ((*H100, "--dataset", "prompts"), "has no lengths in tokens"),
            (("--step-time", "/no/such/file"), "cannot read /no/such/file"),
            ((*H100, "--save-texts"), "--save-texts is for octavo bench"),
            ((*H100, "--metadata", "x"), "--metadata 'x' must be like NAME=VALUE"),
        ],
    )
    def test_bad_flags_are_named(self, capsys, flags, message):
        assert message in refused(capsys, "serve", *flags)


class TestBadTraces:
    HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("TIMESTAMP,ContextTokens\n1,2\n", "line 1: no column GeneratedTokens"),
            (HEADER + "2023-11-16 18:15:47.00,-5,3\n", "line 3: ContextTokens must be at least 0"),
            (HEADER + "2023-11-16 18:15:47.00,7,99999999999\n", "line 3: GeneratedTokens must be"),
            (HEADER + "2023-11-16 18:15:40.00,7,9\n", "line 3: its time is 6.68 s before that"),
            (HEADER + "yesterday,7,9\n", "line 3: TIMESTAMP 'yesterday' is no time"),
            (HEADER + "2023-11-16 18:15:47.00,7\n", "line 3: 2 values for 3 columns"),
            (HEADER + "2023-11-16 18:15:47.00,nan,9\n", "line 3: ContextTokens must be finite"),
            (HEADER + f"2023-11-16 18:15:47.00,7,{'9' * 200_000}\n", "line 3: field larger than"),
            ("", "no column"),
        ],
    )
    @pytest.mark.parametrize("command", ["serve", "plan", "hits"])
    def test_the_line_is_named_and_nothing_is_written(
        self, tmp_path, capsys, text, message, command
    ):
        trace = tmp_path / "trace.csv"
        trace.write_text(text)
        flags = ["--dataset", "azure", "--dataset-path", str(trace)]
        if command != "hits":
            flags += [*H100, "--json", str(tmp_path / "out.json")]
        if command == "plan":
            flags += ["--slo", "ttft:500"]
        assert message in refused(capsys, command, *flags)
        assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]

    def test_a_cut_off_archive(self, tmp_path, capsys):
        trace = tmp_path / "trace.jsonl.gz"
        trace.write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 999)[:40])
        line = refused(capsys, "hits", "--dataset", "mooncake", "--dataset-path", str(trace))
        assert str(trace) in line


def test_hits_of_a_trace_that_shares_blocks(tmp_path, capsys):
    trace = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": t, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 10 + t]}
        for t in range(4)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--dataset", "mooncake", "--dataset-path", str(trace), "--tokens", "1k,inf")
    path = tmp_path / "hits.json"
    assert main(["hits", *flags, "--json", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    # Three of four find two blocks of 512; 1,000 tokens hold no prompt at all.
    assert f"{3 * 1024 / 4400:.2%}" in out and "│ 4 │" in out
    main(["hits", *flags[:-1], "inf", "-n", "1", "--json", str(tmp_path / "one.json")])
    [one] = json.loads((tmp_path / "one.json").read_text())["sizes"]
    assert one["prompt_tokens"] == 1100
    small, endless = json.loads(path.read_text())["sizes"]
    assert (small["tokens"], small["too_long"], small["found"]) == (1000, 4, 0)
    assert (endless["tokens"], endless["ratio"]) == (None, 3 * 1024 / 4400)


class TestFit:
    def write_log(self, path, count=200, *, version=1):
        chance = random.Random(2)
        head = {"octavo_step_log": version, "model": "m", "device": "cpu", "page_size": 16,
                "num_pages": 1000, "max_model_len": 4096, "max_num_seqs": 32,
                "max_num_batched_tokens": 512, "enable_prefix_caching": True}  # fmt: skip
        lines = [head]
        for number in range(count):
            decodes, prompt = chance.randint(1, 32), chance.choice((0, 0, 100, 400))
            lines.append(
                {"t": number, "ms": 5 + decodes + 0.1 * prompt, "gap_ms": 0.5,
                 "prefill_tokens": prompt, "decode_tokens": decodes,
                 "sequences": decodes + bool(prompt), "samples": decodes + bool(prompt),
                 "context_tokens": chance.randint(20, 900) * decodes + prompt,
                 "pairs": prompt * (prompt + 1) // 2}
            )  # fmt: skip
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return lines

    def test_from_a_log_to_a_simulated_server(self, tmp_path, capsys):
        log, fit, result = (tmp_path / name for name in ("log", "fit.json", "run.json"))
        self.write_log(log)
        assert main(["fit", str(log), "-o", str(fit)]) == 0
        assert "held out" in capsys.readouterr().out
        data = json.loads(fit.read_text())
        assert abs(data["fit"]["total_error"]) < 0.03
        flags = ["-n", "8", "-c", "8", "--output-len", "50", "--json", str(result), "-q"]
        assert main(["serve", "--step-time", str(fit), *flags]) == 0
        run = json.loads(result.read_text())
        assert (run["max_num_seqs"], run["num_pages"]) == (32, 1000)
        # Eight at once: 5 + 8 ms and the gap of 0.5.
        assert run["median_itl_ms"] == pytest.approx(13.5, rel=0.05)
        assert "steps larger" not in " ".join(run["dataset_notes"])
        more = ["--max-num-seqs", "99", "-c", "90", "-n", "90", "--json", str(result)]
        assert main(["serve", "--step-time", str(fit), *more]) == 0
        [note] = json.loads(result.read_text())["dataset_notes"]
        assert "larger than any in the step log" in note and "90 sequences (log: 33)" in note

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            ({"sequences": -1}, "line 4: sequences must be a count, got -1"),
            ({"ms": "fast"}, "line 4: ms must be milliseconds, got 'fast'"),
            ({"prefill_tokens": 0, "decode_tokens": 0}, "line 4: a step without tokens"),
        ],
    )
    def test_a_damaged_line_is_named(self, tmp_path, capsys, spoil, message):
        log = tmp_path / "log"
        lines = self.write_log(log)
        lines[3].update(spoil)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert message in refused(capsys, "fit", str(log), "-o", str(tmp_path / "fit.json"))
        assert not (tmp_path / "fit.json").exists()

    def test_what_is_no_log_is_refused(self, tmp_path, capsys):
        log = tmp_path / "log"
        self.write_log(log, version=9)
        assert "line 1: format 9, known is 1" in refused(capsys, "fit", str(log))
        log.write_text("")
        assert "does not say what served" in refused(capsys, "fit", str(log))
        self.write_log(log, 20)
        assert "at least 50 steps" in refused(capsys, "fit", str(log))


class TestPlan:
    def test_the_fewest_gpus_with_their_settings(self, azure, tmp_path, capsys):
        path, plot = tmp_path / "plan.json", tmp_path / "plan.png"
        flags = ["--slo", "ttft:500,tpot:50", "--trace", str(azure), "--json", str(path)]
        assert main(["plan", *H100, *flags, "--plot", str(plot)]) == 0
        data = json.loads(path.read_text())
        assert data["best"]["replicas"] == 1 and data["best"]["kept"] >= 0.99
        assert [point["replicas"] for point in data["curve"]] == [1]
        assert plot.read_bytes().startswith(b"\x89PNG")
        out = " ".join(capsys.readouterr().out.split())
        assert "GPUs: 1, each: octavo serve --max-num-seqs" in out

    def test_an_objective_that_nothing_keeps(self, azure, capsys):
        flags = ["--slo", "ttft:1", "--trace", str(azure), "--max-gpus", "2"]
        assert main(["plan", *H100, *flags]) == 1
        assert "No number of GPUs" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--slo", "speed:9", "-r", "5"), "one of ttft, tpot, e2el"),
            (("--slo", "ttft:500"), "a plan needs a rate or a trace"),
        ],
    )
    def test_bad_flags_are_named(self, capsys, flags, message):
        assert message in refused(capsys, "plan", *H100, *flags)

    def test_a_file_of_no_known_format(self, tmp_path, capsys):
        (tmp_path / "x").write_text("hello\n")
        line = refused(capsys, "plan", *H100, "--slo", "ttft:5", "--trace", str(tmp_path / "x"))
        assert "line 1: none of the formats azure, burstgpt, mooncake" in line


def test_simulating_never_loads_torch():
    script = """
import sys
from server.cli import main
main(["simulate", "serve", "--model", "llama-3.1-8b", "--device", "h100", "-n", "4", "-q"])
print(sorted({"torch", "transformers", "fastapi"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
