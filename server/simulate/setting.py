"""The flags that say what runs the load, and the simulated server that comes of them."""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.config import EngineConfig
from scheduler import SchedulerConfig
from scheduler.simulation.devices import DEVICES, Efficiency, pages_that_fit, step_time_of
from scheduler.simulation.replica import ReplicaConfig
from scheduler.simulation.shapes import DTYPE_BYTES, ModelShape
from scheduler.simulation.step_time import StepTimeModel, StepWork, model_from_json
from server.flag_values import at_least, fraction, seconds, size
from server.simulate.models import find_shape

Value = TypeVar("Value")
_KV_DTYPES = tuple(name for name, width in DTYPE_BYTES.items() if width >= 1)
_DEFAULTS = EngineConfig()


class SettingError(ValueError):
    """Flags that describe no server; the message is one line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated: the model's name, and what it runs on, for tables."""

    model: str
    place: str
    replica: ReplicaConfig


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what serves")
    what.add_argument("--model", metavar="MODEL", help="name, folder with config.json, or hub id")
    what.add_argument(
        "--device", choices=DEVICES, metavar="NAME",
        help=f"by its data sheet, nothing was measured: {', '.join(DEVICES)}",
    )  # fmt: skip
    what.add_argument(
        "--step-time", type=Path, metavar="FILE", help="instead: what `octavo simulate fit` wrote"
    )
    what.add_argument(
        "--dtype", choices=DTYPE_BYTES, default="bfloat16", metavar="DTYPE",
        help=f"of the weights: {', '.join(DTYPE_BYTES)} (default: %(default)s)",
    )  # fmt: skip
    what.add_argument(
        "--kv-cache-dtype", choices=_KV_DTYPES, metavar="DTYPE", help="default: as the weights"
    )
    part = checked(fraction)
    usual = Efficiency()
    what.add_argument(
        "--bandwidth-efficiency", type=part, default=usual.bandwidth, metavar="FRACTION",
        help="part of the data sheet's bandwidth that is reached (default: %(default)s)",
    )  # fmt: skip
    what.add_argument(
        "--flops-efficiency", type=part, default=usual.flops, metavar="FRACTION",
        help="likewise of its FLOP/s (default: %(default)s)",
    )  # fmt: skip
    what.add_argument(
        "--overhead-ms", type=checked(seconds), default=usual.overhead * 1000, metavar="MS",
        help="what a step costs besides (default: %(default)s)",
    )  # fmt: skip
    what.add_argument(
        "--gpu-memory-utilization", type=part, default=usual.memory, metavar="FRACTION",
        help="part of the memory for weights and cache (default: %(default)s)",
    )  # fmt: skip
    server = parser.add_argument_group("server (defaults: those of the step log, or of serve)")
    whole = checked(at_least(1))
    for names in (
        ("--max-num-seqs",),
        ("--max-num-batched-tokens",),
        ("--block-size", "--page-size"),
        ("--num-gpu-blocks-override", "--num-pages"),
        ("--max-model-len",),
    ):
        server.add_argument(*names, type=whole, metavar="N")
    server.add_argument("--kv-cache-memory-bytes", type=checked(size), metavar="SIZE")
    server.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)


def read_setting(given: argparse.Namespace) -> Setting:
    """Raises `SettingError`."""
    try:
        if given.step_time is not None:
            return _fitted(given)
        return _by_data_sheet(given)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(str(error)) from None


def guesses(step_time: StepTimeModel, largest: StepWork) -> list[str]:
    """Says so where steps were larger than any that the step times were fitted to."""
    beyond = step_time.beyond(largest)
    parts = [f"{asked:,} {name} (log: {seen:,})" for name, (asked, seen) in beyond.items()]
    if not parts:
        return []
    return [f"steps larger than any in the step log, whose times are guessed: {', '.join(parts)}"]


def checked(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """`parse` as argparse takes it: the text of its errors is shown."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _by_data_sheet(given: argparse.Namespace) -> Setting:
    if given.device is None:
        raise SettingError("say what serves: --device NAME or --step-time FILE")
    if given.model is None:
        raise SettingError("--device needs --model, whose weights it reads")
    shape, device = find_shape(given.model), DEVICES[given.device]
    kv_dtype = _kv_dtype(given)
    efficiency = Efficiency(
        bandwidth=given.bandwidth_efficiency,
        flops=given.flops_efficiency,
        overhead=given.overhead_ms / 1000,
        memory=given.gpu_memory_utilization,
    )
    step_time = step_time_of(device, shape, given.dtype, kv_dtype, efficiency)
    page_size = given.block_size or _DEFAULTS.page_size
    room = pages_that_fit(device, shape, given.dtype, kv_dtype, page_size, efficiency)
    num_pages = _num_pages(given, shape, kv_dtype, page_size) or room
    if num_pages > room:
        raise SettingError(
            f"{num_pages} pages do not fit: beside the weights there is room for {room}"
        )
    replica = _replica(given, step_time, num_pages, page_size, shape.max_model_len, {})
    return Setting(shape.name, f"{device.name} (data sheet)", replica)


def _fitted(given: argparse.Namespace) -> Setting:
    if given.device is not None:
        raise SettingError("--device and --step-time exclude each other")
    try:
        data = json.loads(given.step_time.read_text())
        server: Mapping[str, Any] = data["server"]
        step_time = model_from_json(json.dumps(data["step_time"]))
        page_size = given.block_size or int(server["page_size"])
        num_pages, longest = int(server["num_pages"]), int(server["max_model_len"])
    except OSError as error:
        raise SettingError(f"cannot read {given.step_time}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise SettingError(f"{given.step_time} is no fit of octavo simulate: {what}") from None
    if given.kv_cache_memory_bytes is not None:
        if given.model is None:
            raise SettingError("--kv-cache-memory-bytes needs --model, for the size of a page")
        shape = find_shape(given.model)
        asked = _num_pages(given, shape, _kv_dtype(given), page_size)
    else:
        asked = given.num_gpu_blocks_override
    replica = _replica(given, step_time, asked or num_pages, page_size, longest, server)
    return Setting(str(server.get("model", "")), f"fit of {given.step_time.name}", replica)


def _replica(
    given: argparse.Namespace,
    step_time: StepTimeModel,
    num_pages: int,
    page_size: int,
    model_max_len: int,
    server: Mapping[str, Any],
) -> ReplicaConfig:
    """Flags before what the log's server had, that before the defaults."""

    def setting(name: str) -> Any:
        asked = getattr(given, name)
        return server.get(name, getattr(_DEFAULTS, name)) if asked is None else asked

    longest = min(model_max_len, num_pages * page_size)
    if given.max_model_len is not None and given.max_model_len > longest:
        raise SettingError(
            f"--max-model-len {given.max_model_len} exceeds {longest}: the model allows "
            f"{model_max_len} tokens and the pool holds {num_pages * page_size}"
        )
    return ReplicaConfig(
        step_time=step_time,
        num_pages=num_pages,
        page_size=page_size,
        scheduler=SchedulerConfig(
            max_num_seqs=setting("max_num_seqs"),
            max_num_batched_tokens=setting("max_num_batched_tokens"),
        ),
        enable_prefix_caching=setting("enable_prefix_caching"),
        max_model_len=given.max_model_len or longest,
    )


def _kv_dtype(given: argparse.Namespace) -> str:
    if given.kv_cache_dtype is not None:
        return str(given.kv_cache_dtype)
    # Weights of half a byte leave the cache in the dtype of the arithmetic.
    return given.dtype if given.dtype in ("float32", "float16") else "bfloat16"


def _num_pages(
    given: argparse.Namespace, shape: ModelShape, kv_dtype: str, page_size: int
) -> int | None:
    if given.num_gpu_blocks_override is not None and given.kv_cache_memory_bytes is not None:
        raise SettingError("--num-gpu-blocks-override and --kv-cache-memory-bytes are one setting")
    if given.kv_cache_memory_bytes is None:
        asked: int | None = given.num_gpu_blocks_override
        return asked
    pages = given.kv_cache_memory_bytes // (shape.kv_bytes_per_token(kv_dtype) * page_size)
    if pages < 1:
        raise SettingError(f"--kv-cache-memory-bytes {given.kv_cache_memory_bytes} holds no page")
    return int(pages)
