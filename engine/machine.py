"""What the machine grants this process: CPU threads, memory, a fast bfloat16. Torch-free.

A container sees the host's CPUs and memory in most places; the limits that count are those of its
cgroups (v1 and v2, every ancestor) and the CPU affinity. Called once at start. Every function takes
`root`, the folder under which /proc and /sys are read, so that tests can lay out a machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
# The instructions that make bfloat16 faster than float32: AVX-512 and AMX on x86, BF16 on ARM.
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def usable_threads(root: Path = _ROOT) -> int:
    """CPUs that this process may keep busy: affinity and CPU quota, rounded down, at least 1."""
    threads = float(_affinity())
    for folder in _cgroup_folders(root, "cpu"):
        quota = _cpu_quota(folder)
        if quota is not None:
            threads = min(threads, quota)
    return max(1, int(threads))


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Bytes that may still be allocated: the machine's or, where that is less, the cgroups'.

    Page cache that the kernel can drop counts as available. Where the system does not tell (macOS),
    half of the physical memory is assumed.
    """
    available = _read_fields(root / "proc/meminfo").get("MemAvailable")
    if available is None:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    else:
        available *= 1024
    for folder in _cgroup_folders(root, "memory"):
        left = _memory_left(folder)
        if left is not None:
            available = min(available, left)
    return max(0, available)


def has_fast_bfloat16(root: Path = _ROOT) -> bool:
    """Whether the CPU multiplies bfloat16 matrices natively; False where that is not known."""
    return not _BFLOAT16_FLAGS.isdisjoint(cpu_flags(root))


def cpu_flags(root: Path = _ROOT) -> frozenset[str]:
    """The processor's features as Linux names them; none where the system does not tell."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup folders for a controller, from its own up to the mount's top.

    /proc/self/mountinfo says which part of the hierarchy is mounted where, /proc/self/cgroup where
    in it we are. The latter may name a path of the host that lies outside the mount: then the top
    of the mount is all that can be seen.
    """
    paths = _cgroup_paths(root)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        mounted, mount_point = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        hierarchy = controller if kind == "cgroup" else ""
        known = kind == "cgroup2" or (kind == "cgroup" and controller in options.split(","))
        if not known or hierarchy not in paths:
            continue
        top = root / mount_point.lstrip("/")
        relative = os.path.relpath(paths[hierarchy], mounted)
        folder = top if relative.startswith("..") else (top / relative)
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def _cgroup_paths(root: Path) -> dict[str, str]:
    """Controller to path within its hierarchy; the empty name stands for cgroup v2."""
    paths = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _cpu_quota(folder: Path) -> float | None:
    """CPUs' worth of time granted to a cgroup, None without a limit."""
    text = _read(folder / "cpu.max") or (
        f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    )
    numbers = [int(word) for word in text.split() if word.lstrip("-").isdigit()]
    if len(numbers) != 2 or min(numbers) <= 0:  # "max 100000" in v2, -1 in v1
        return None
    return numbers[0] / numbers[1]


def _memory_left(folder: Path) -> int | None:
    """Bytes between a cgroup's limit and what it uses, None without a limit."""
    limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    usage = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    if not limit.isdigit() or not usage.isdigit():
        return None
    statistics = _read_fields(folder / "memory.stat")
    # v1 counts the group alone under the plain name, its children too under "total_".
    reclaimable = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    return int(limit) - (int(usage) - reclaimable)


def _read(path: Path) -> str:
    """The stripped text of a file, empty where there is none or it may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read_fields(path: Path) -> dict[str, int]:
    """Lines of a name, perhaps a colon, and a number."""
    lines = (line.replace(":", " ").split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
