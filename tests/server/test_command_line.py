"""The command `octavo`: flags, variables, and what it says when called wrongly."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import server.commands
import server.serve
from engine.config import EngineConfig, EngineError
from server.cli import main
from server.flags import ENGINE_FLAGS, SERVER_FLAGS
from server.settings import ServerSettings


@pytest.fixture
def serve_with(monkeypatch):
    """`serve_with(*arguments)`: the settings that `octavo serve` would run with."""
    seen = []

    def run(config, settings):
        seen.append((config, settings))
        return 0

    monkeypatch.setattr(server.serve, "run", run)

    def call(*arguments):
        assert main(["serve", *arguments]) == 0
        return seen[-1]

    return call


def refused(capsys, *arguments):
    """The one line on stderr of a call that ends with code 2."""
    try:
        code = main(list(arguments))
    except SystemExit as error:
        code = error.code
    assert code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_every_setting_has_a_flag():
    for settings, flags in ((EngineConfig, ENGINE_FLAGS), (ServerSettings, SERVER_FLAGS)):
        fields = {field.name for field in dataclasses.fields(settings)}
        assert {flag.field for flag in flags} == fields


def test_without_flags_the_defaults_hold(serve_with):
    assert serve_with() == (EngineConfig(), ServerSettings())


def test_flags_set_their_fields(serve_with):
    config, settings = serve_with(
        *("some/model", "--dtype", "bfloat16", "--max-model-len", "512"),
        *("--kv-cache-memory-bytes", "1.5GiB", "--no-enable-prefix-caching", "--offline"),
        *("--cache-dir", "/models", "--gpu-memory-utilization", "0.5"),
        *("--served-model-name", "a", "b", "--port", "9000", "--max-body-bytes", "2M"),
        *("--shutdown-timeout", "1.5"),
    )
    assert config == EngineConfig(
        model="some/model",
        dtype="bfloat16",
        max_model_len=512,
        kv_cache_memory_bytes=1536 * 2**20,
        enable_prefix_caching=False,
        offline=True,
        cache_dir=Path("/models"),
        gpu_memory_utilization=0.5,
    )
    assert settings == ServerSettings(
        served_model_names=("a", "b"),
        port=9000,
        max_body_bytes=2 * 2**20,
        shutdown_timeout=1.5,
    )


@pytest.mark.parametrize(
    ("names", "field"),
    [
        (("--block-size", "--page-size"), "page_size"),
        (("--num-gpu-blocks-override", "--num-pages"), "num_pages"),
    ],
)
def test_vllms_names_and_ours_are_one(serve_with, names, field):
    for name in names:
        config, _ = serve_with(name, "32")
        assert getattr(config, field) == 32


def test_variables_stand_between_defaults_and_flags(serve_with, monkeypatch):
    monkeypatch.setenv("OCTAVO_MODEL", "from/variable")
    monkeypatch.setenv("OCTAVO_NUM_PAGES", "77")
    monkeypatch.setenv("OCTAVO_PORT", "9001")
    monkeypatch.setenv("OCTAVO_ENABLE_PREFIX_CACHING", "false")
    monkeypatch.setenv("OCTAVO_SERVED_MODEL_NAMES", "a, b")
    config, settings = serve_with("--num-pages", "5")
    assert (config.model, config.num_pages, settings.port) == ("from/variable", 5, 9001)
    assert config.enable_prefix_caching is False
    assert settings.served_model_names == ("a", "b")
    assert serve_with("by/position")[0].model == "by/position"


def test_api_keys_come_from_flags_a_file_and_variables(serve_with, monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n  second  \n")
    _, settings = serve_with("--api-key", "a", "--api-key", "b", "--api-key-file", str(file))
    assert settings.api_keys == ("a", "b")
    assert settings.api_keys_in_file == ("first", "second")
    monkeypatch.setenv("OCTAVO_API_KEY", "c,d")
    monkeypatch.setenv("OCTAVO_API_KEY_FILE", str(file))
    assert serve_with()[1].api_keys == ("c", "d")
    assert serve_with()[1].api_keys_in_file == ("first", "second")
    assert serve_with("--api-key", "a", "some/model")[1].api_keys == ("a",)


@pytest.mark.parametrize(
    "content", ["", "# only words\n", "good\nnot a secret\n", "caf\u00e9", None]
)
def test_a_key_file_without_usable_keys_is_told_without_its_content(
    serve_with, capsys, tmp_path, content
):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    line = refused(capsys, "serve", "--api-key-file", str(file))
    assert "--api-key-file" in line and str(file) in line
    assert "secret" not in line and "caf" not in line


def test_a_key_that_no_header_can_hold_is_refused_unseen(serve_with, capsys):
    line = refused(capsys, "serve", "--api-key", "not a secret")
    assert "--api-key" in line and "secret" not in line


def test_a_certificate_must_be_a_file(serve_with, capsys, tmp_path):
    missing = tmp_path / "cert.pem"
    assert str(missing) in refused(capsys, "serve", "--ssl-certfile", str(missing))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-model-len", "0"), ("--max-model-len", "at least 1", "0")),
        (("--max-model-len", "many"), ("--max-model-len", "integer", "many")),
        (("--dtype", "int8"), ("--dtype", "float32", "int8")),
        (("--gpu-memory-utilization", "1.5"), ("--gpu-memory-utilization", "1.5")),
        (("--kv-cache-memory-bytes", "4X"), ("--kv-cache-memory-bytes", "4X")),
        (("--port", "70000"), ("--port", "65535", "70000")),
        (("--shutdown-timeout", "inf"), ("--shutdown-timeout", "finite", "inf")),
        (("--nonsense",), ("--nonsense",)),
        (("--max-model", "5"), ("--max-model",)),
        (("a", "--model", "b"), ("a", "b")),
    ],
)
def test_a_wrong_flag_is_told_in_one_line(serve_with, capsys, arguments, words):
    line = refused(capsys, "serve", *arguments)
    assert all(word in line for word in words)


def test_a_wrong_variable_is_told_by_its_name(serve_with, capsys, monkeypatch):
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "0")
    assert "OCTAVO_MAX_NUM_SEQS must be at least 1" in refused(capsys, "serve")


def test_no_command_or_an_unknown_one_is_told(capsys):
    assert "COMMAND" in refused(capsys)
    assert "nonsense" in refused(capsys, "nonsense")


def test_an_engine_error_is_one_line_and_code_1(capsys, monkeypatch):
    def fail(config):
        raise EngineError("no such model")

    monkeypatch.setattr(server.commands, "_check", lambda namespace: fail(None))
    assert main(["check"]) == 1
    assert capsys.readouterr().err == "octavo check: no such model\n"


def test_without_the_extra_the_command_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(
        server.commands, "find_spec", lambda name: None if name == "torch" else object()
    )
    assert main(["serve"]) == 1
    message = capsys.readouterr().err
    assert "pip install 'octavo[server]'" in message and "torch" in message


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("serve", signal.SIGTERM, 0),
        ("serve", signal.SIGINT, 0),
        ("check", signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_a_stop_signal_ends_serve_before_it_has_begun_and_other_commands_as_ever(
    command, number, code
):
    """It comes with the first import that takes long."""
    script = f"""
import os, sys

class StopSignal:
    def find_spec(self, name, path=None, target=None):
        if name == "argparse":
            os.kill(os.getpid(), {int(number)})

sys.meta_path.insert(0, StopSignal())
from server.cli import main
main([{command!r}])
raise AssertionError("no signal was heard")
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("octavo ")


def imported_by(code):
    """The modules in a fresh interpreter after running `code`."""
    root = Path(__file__).parents[2]
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_command_line_imports_nothing_heavy():
    modules = imported_by("import server.cli, server.commands, server.serve")
    heavy = {"torch", "transformers", "fastapi", "uvicorn", "pydantic", "tokenizers", "jinja2"}
    assert not modules & heavy


def test_the_app_with_a_tokenizer_needs_no_torch(model_dir):
    modules = imported_by(
        "from pathlib import Path\n"
        "from engine.text import Tokenizer\n"
        "from server.app import create_app\n"
        "from server.settings import ServerSettings\n"
        f"tokenizer = Tokenizer.load(Path({str(model_dir)!r}))\n"
        "from engine.client import EngineClient\n"
        "from engine.config import EngineConfig\n"
        "engine = EngineClient.from_config(EngineConfig())\n"
        "create_app(engine, lambda: tokenizer, ServerSettings())\n"
        "import server.http_server"
    )
    assert not modules & {"torch", "transformers", "safetensors"}
