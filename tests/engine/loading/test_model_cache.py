import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.config import EngineError
from engine.loading.cache import ModelCache, default_cache_dir
from engine.loading.child import run_child

KEY = "some-model-0123"

# A builder in a process of its own: counts its runs, then waits to be told to go on or is killed.
BUILDER = """
import sys
from pathlib import Path
from engine.loading.cache import ModelCache

def build(result, scratch):
    with open(sys.argv[2], "a") as runs:
        runs.write("run\\n")
    (result / "weights").write_text("half")
    print("building", flush=True)
    sys.stdin.readline()
    (result / "weights").write_text("whole")

print(ModelCache(Path(sys.argv[1])).find_or_build(sys.argv[3], build, lambda report: None))
"""


@pytest.fixture
def cache(tmp_path):
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def start_builder(cache, tmp_path):
    """Start a builder process; its standard input makes it go on."""
    processes = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(cache.folder), str(tmp_path / "runs"), KEY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def write_weights(result: Path, scratch: Path) -> None:
    (result / "weights").write_text("whole")
    (scratch / "download").write_text("not kept")


def fail(result: Path, scratch: Path) -> None:
    (result / "weights").write_text("half")
    raise EngineError("no network")


def must_not_build(result: Path, scratch: Path) -> None:
    raise AssertionError("built although the entry was there")


def work_folders(cache):
    return [path for path in (cache.folder / "work").iterdir() if path.is_dir()]


def test_an_entry_is_built_once_and_then_found(cache, reports):
    assert cache.find(KEY, reports.append) is None
    built = cache.find_or_build(KEY, write_weights, reports.append)
    assert (built / "weights").read_text() == "whole"
    assert cache.find_or_build(KEY, must_not_build, reports.append) == built
    assert cache.find(KEY, reports.append) == built


def test_scratch_files_are_gone_after_building(cache, reports):
    built = cache.find_or_build(KEY, write_weights, reports.append)
    assert work_folders(cache) == []
    assert not (built / "download").exists()


def test_a_failed_build_leaves_neither_entry_nor_workspace(cache, reports):
    with pytest.raises(EngineError, match="no network"):
        cache.find_or_build(KEY, fail, reports.append)
    assert cache.find(KEY, reports.append) is None
    assert work_folders(cache) == []


@pytest.mark.parametrize("damage", ["truncate", "delete", "no manifest"])
def test_a_damaged_entry_is_reported_and_rebuilt(cache, reports, damage):
    built = cache.find_or_build(KEY, write_weights, reports.append)
    if damage == "truncate":
        os.truncate(built / "weights", 2)
    else:
        (built / ("weights" if damage == "delete" else "octavo.json")).unlink()
    assert cache.find(KEY, reports.append) is None
    assert "damaged" in reports[-1].message
    cache.find_or_build(KEY, write_weights, reports.append)
    assert (built / "weights").read_text() == "whole"
    assert work_folders(cache) == []


def test_files_of_an_entry_are_as_readable_as_any_new_file(cache, reports, tmp_path):
    def write_private(result, scratch):
        write_weights(result, scratch)
        (result / "weights").chmod(0o600)

    (tmp_path / "new").touch()
    built = cache.find_or_build(KEY, write_private, reports.append)
    assert (built / "weights").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_killed_builder_leaves_no_entry_and_the_next_sweeps_up(cache, reports, start_builder):
    process = start_builder()
    assert process.stdout.readline() == "building\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(work_folders(cache)) == 1
    assert cache.find(KEY, reports.append) is None

    built = cache.find_or_build(KEY, write_weights, reports.append)
    assert (built / "weights").read_text() == "whole"
    assert work_folders(cache) == []


def test_two_processes_build_an_entry_once(cache, tmp_path, reports, start_builder):
    first = start_builder()
    assert first.stdout.readline() == "building\n"
    waiting = threading.Event()
    found = []

    def second():
        found.append(cache.find_or_build(KEY, must_not_build, lambda report: waiting.set()))

    thread = threading.Thread(target=second)
    thread.start()
    assert waiting.wait(30)
    first.communicate("go on\n", timeout=30)
    thread.join(30)
    assert [(entry / "weights").read_text() for entry in found] == ["whole"]
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_cache_that_cannot_be_written_is_named(tmp_path, reports):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "cache"
    with pytest.raises(EngineError, match=f"cache folder {folder} .*set OCTAVO_CACHE"):
        ModelCache(folder).find_or_build(KEY, write_weights, reports.append)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_serves_what_it_holds_and_refuses_to_build(cache, reports):
    built = cache.find_or_build(KEY, write_weights, reports.append)
    folders = [cache.folder / "models", cache.folder / "work", cache.folder]
    try:
        for folder in folders:
            folder.chmod(0o500)
        assert cache.find_or_build(KEY, must_not_build, reports.append) == built
        with pytest.raises(EngineError, match="Permission denied"):
            cache.find_or_build("another-4567", write_weights, reports.append)
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_the_cache_folder_is_taken_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("OCTAVO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "octavo"


def test_an_interrupted_child_program_is_ended(tmp_path):
    log = tmp_path / "log"

    def interrupt():
        if log.read_text():
            raise KeyboardInterrupt

    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(KeyboardInterrupt):
        run_child(["-c", program], log=log, on_tick=interrupt, environment={})
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)
