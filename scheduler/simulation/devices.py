"""Devices by name, and the step-time model that their data sheets promise.

These are the makers' figures, for dense bfloat16, without sparsity; nothing here was measured. What
a server reaches of them is an assumption (`Efficiency`), the same for all devices, so a model made
here ranks devices and finds what limits a load. For times to rely on, fit a step log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scheduler.simulation.shapes import DTYPE_BYTES, ModelShape
from scheduler.simulation.step_time import StepTimeModel

_GB = 10**9
_SPEED = {"float32": 0.5, "float8": 2.0, "int8": 2.0}  # of the arithmetic, to that in bfloat16
_KNOTS = tuple(2**power for power in range(15))


@dataclass(frozen=True, slots=True)
class Device:
    """`bandwidth` in bytes/s, `flops` in dense bfloat16 operations/s, memory in bytes. `flops` of
    8-bit formats are taken as twice, of float32 as half as many."""

    name: str
    memory: int
    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Which part of the data sheet's figures a server reaches, and what a step costs besides.

    `overhead` (launching, scheduling, sampling) is in seconds a step. `memory` of the device may be
    used; of that, `reserve` bytes hold activations and the runtime.
    """

    bandwidth: float = 0.80
    flops: float = 0.55
    overhead: float = 0.003
    memory: float = 0.90
    reserve: int = 2 * 2**30

    def __post_init__(self) -> None:
        for name in ("bandwidth", "flops", "memory"):
            if not 0.001 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"the efficiency of {name} must lie in 0.001 to 1, got {getattr(self, name)}"
                )
        if self.overhead < 0 or self.reserve < 0:
            raise ValueError(
                f"overhead ({self.overhead}) and reserve ({self.reserve}) must be at least 0"
            )


# Name, memory in GB, GB/s, dense bfloat16 TFLOP/s.
_SHEETS = (
    ("l4", 24, 300, 121),
    ("a10", 24, 600, 125),
    ("l40s", 48, 864, 362),
    ("rtx4090", 24, 1008, 165),
    ("a100-40gb", 40, 1555, 312),
    ("a100-80gb", 80, 2039, 312),
    ("h100-pcie", 80, 2000, 756),
    ("h100", 80, 3350, 989),
    ("h200", 141, 4800, 989),
    ("b200", 180, 7700, 2250),
    ("mi300x", 192, 5300, 1307),
)
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        name: Device(name, size * _GB, rate * _GB, flops * 1e12)
        for name, size, rate, flops in _SHEETS
    }
)


def step_time_of(
    device: Device, shape: ModelShape, dtype: str, kv_dtype: str, efficiency: Efficiency
) -> StepTimeModel:
    """Weights and cache over bandwidth, arithmetic over FLOP/s, and the overhead.

    The matrices take the longer of reading them and multiplying with them. The LM head is read once
    a step and multiplied for sampled rows only.
    """
    bandwidth = device.bandwidth * efficiency.bandwidth
    flops = device.flops * efficiency.flops * _SPEED.get(dtype, 1.0)
    matrices = shape.body_parameters + shape.head_parameters
    reading = matrices * DTYPE_BYTES[dtype] / bandwidth
    attention_flops = 4 * shape.num_layers * shape.num_query_heads * shape.head_dim
    return StepTimeModel(
        overhead=efficiency.overhead,
        matrix=_roofline(reading, 2 * shape.body_parameters / flops),
        per_sample=2 * shape.head_parameters / flops,
        per_context_token=shape.kv_bytes_per_token(kv_dtype) / bandwidth,
        per_pair=attention_flops / (device.flops * efficiency.flops),
        source=(
            f"data sheet of {device.name} ({device.bandwidth / _GB:.0f} GB/s, "
            f"{device.flops / 1e12:.0f} TFLOP/s), of which {efficiency.bandwidth:.0%} and "
            f"{efficiency.flops:.0%} are assumed to be reached"
        ),
    )


def pages_that_fit(
    device: Device,
    shape: ModelShape,
    dtype: str,
    kv_dtype: str,
    page_size: int,
    efficiency: Efficiency,
) -> int:
    """Pages beside the weights. Raises ValueError, with the numbers, where there is no room."""
    usable = int(device.memory * efficiency.memory) - efficiency.reserve
    left = usable - shape.weight_bytes(dtype)
    page = shape.kv_bytes_per_token(kv_dtype) * page_size
    pages = left // page
    if pages < 1 <= left / page * page_size:
        raise ValueError(
            f"a page of {page_size} tokens takes {page / _GB:.1f} GB, and beside the weights "
            f"{left / _GB:.1f} GB are left"
        )
    if pages < 1:
        raise ValueError(
            f"{shape.name} in {dtype} has {shape.weight_bytes(dtype) / _GB:.1f} GB of weights and "
            f"{device.name} {usable / _GB:.1f} GB for weights and cache: take a larger device or a "
            "smaller dtype"
        )
    return pages


def _roofline(reading: float, per_token: float) -> tuple[tuple[int, float], ...]:
    """The matrices' curve: level while reading takes longer, then proportional to the tokens."""
    corner = max(reading / per_token, 1.0)
    level = (max(int(corner), 1), reading)
    rising = [(knot, per_token * knot) for knot in _KNOTS if knot > corner]
    return (level, *(rising or [(int(corner) + 1, per_token * (int(corner) + 1))]))
