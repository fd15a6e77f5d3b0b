"""Many clients, nonsense, disconnects, a pool too small for all, and an engine that is killed:
every call has one outcome, every whole answer is the undisturbed one, and nothing is left behind.
"""

from pathlib import Path

import pytest
from chaos import (
    ENGINE_DIED,
    LEFT,
    MAX_BODY_BYTES,
    OUT_OF_TIME,
    ChaosRun,
    Plan,
    unexpected_lines,
)
from server_process import ServerProcess

from engine.config import EngineError
from engine.loading import resolve_model

MODEL = "smollm2-135m"
MAX_GROWTH = 1.05
SHORT = Plan(
    num_distinct=8, num_good=48, num_bad=22, crowd=0, num_kills=1, num_pages=16, calls_at_once=3
)
LONG = Plan(
    num_distinct=100,
    num_good=2500,
    num_bad=506,
    crowd=10,
    num_kills=2,
    num_pages=20,
    num_threads=2,
)


def model_dir() -> Path:
    try:
        return resolve_model(MODEL, cache_dir=None, offline=True, report=lambda progress: None)
    except EngineError as error:
        pytest.skip(f"needs the default model: {error}")


@pytest.mark.real_model
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "plan", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_chaos(tmp_path: Path, plan: Plan) -> None:
    flags = (
        *("--dtype", "float32", "--threads", str(plan.num_threads), "--no-self-check"),
        *("--num-pages", str(plan.num_pages), "--max-num-seqs", "16"),
        *("--max-num-batched-tokens", "256", "--max-body-bytes", str(MAX_BODY_BYTES)),
        *("--log-format", "json", "--served-model-name", MODEL),
        *("--log-stats-interval", "0.5"),
    )
    log = tmp_path / "server.log"
    with ServerProcess(model_dir(), log, *flags) as server:
        chaos = ChaosRun(server, plan, seed=1)
        chaos.run()
        report, ready = chaos.report, server.wait_ready()
        report.preemptions = sum(
            record["preemptions"] for record in server.records() if record["message"] == "status"
        )
        print("\n" + "\n".join(report.lines()))
        server.signal()
        assert server.wait_exit() == 0
    assert report.wrong_answers == []
    allowed = {"answered", LEFT, *ENGINE_DIED, *OUT_OF_TIME}
    assert {o for o in report.outcomes if not o.startswith("refused")} <= allowed
    assert len(report.bad_kinds) >= 20
    assert report.outcomes["answered"] > 0.5 * plan.num_good
    assert len(report.recoveries) == ready["num_engine_restarts"] == plan.num_kills
    assert report.preemptions > 0
    before, after = report.before, report.after
    assert before is not None and after is not None
    assert after.tasks <= before.tasks
    assert after.threads <= before.threads
    assert after.files <= before.files
    if plan is LONG:  # a short warm-up does not make a process as large as it gets
        assert after.server_bytes <= MAX_GROWTH * before.server_bytes
        assert after.engine_bytes <= MAX_GROWTH * before.engine_bytes
    assert unexpected_lines(log) == []
