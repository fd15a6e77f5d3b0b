"""Fake /proc and /sys trees laid out as containers and hosts have them."""

import os

import pytest

from engine.machine import available_memory_bytes, has_fast_bfloat16, usable_threads

GIB = 2**30
V2_MOUNT = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.fixture
def machine(tmp_path):
    """Writes files below a root and returns the root."""

    def lay_out(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return lay_out


def cgroup_v2(folder, files, *, path="/"):
    """A process in a v2 group, with the group's files in `folder` below the mount."""
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": V2_MOUNT,
        "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n",
        **{f"sys/fs/cgroup{folder}/{name}": text for name, text in files.items()},
    }


def cgroup_v1(controller, files, *, path="/", mounted="/"):
    mount = f"/sys/fs/cgroup/{controller}"
    return {
        "proc/self/cgroup": f"4:{controller}:{path}\n3:name=systemd:/\n0::/\n",
        "proc/self/mountinfo": (
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
            f"32 31 0:29 {mounted} {mount} rw shared:9 - cgroup cgroup rw,{controller}\n"
        ),
        "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n",
        **{f"{mount[1:]}/{name}": text for name, text in files.items()},
    }


@pytest.mark.parametrize(
    ("cpu_max", "threads"),
    [
        ("300000 100000", 3),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", 8),
        ("1600000 100000", 8),
    ],
)
def test_a_cpu_quota_limits_threads_rounded_down(machine, eight_cpus, cpu_max, threads):
    assert usable_threads(machine(cgroup_v2("", {"cpu.max": cpu_max}))) == threads


def test_without_cgroups_the_affinity_counts(machine, eight_cpus):
    assert usable_threads(machine({})) == 8


def test_the_thread_variable_of_openmp_is_not_read(machine, eight_cpus, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert usable_threads(machine({})) == 8


def test_a_quota_of_an_ancestor_counts(machine, eight_cpus):
    files = cgroup_v2("/pod/box", {"cpu.max": "max 100000"}, path="/pod/box")
    files["sys/fs/cgroup/pod/cpu.max"] = "400000 100000"
    assert usable_threads(machine(files)) == 4


@pytest.mark.parametrize(("quota", "threads"), [("200000", 2), ("-1", 8)])
def test_a_v1_quota_limits_threads(machine, eight_cpus, quota, threads):
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": "100000"}
    assert usable_threads(machine(cgroup_v1("cpu,cpuacct", files))) == threads


def test_a_v1_container_without_namespace_sees_its_group_at_the_mount(machine, eight_cpus):
    """The path of /proc/self/cgroup is the host's, and the mount shows just that part of it."""
    files = cgroup_v1(
        "cpu",
        {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
        path="/docker/abc",
        mounted="/docker/abc",
    )
    assert usable_threads(machine(files)) == 3


def test_a_path_outside_the_mount_falls_back_to_the_mount(machine, eight_cpus):
    files = cgroup_v2("", {"cpu.max": "200000 100000"}, path="/../../elsewhere")
    assert usable_threads(machine(files)) == 2


def test_memory_is_what_the_machine_has_available_without_limits(machine):
    assert available_memory_bytes(machine(cgroup_v2("", {}))) == 32 * GIB


def test_memory_is_the_groups_limit_less_its_usage(machine):
    files = {"memory.max": str(4 * GIB), "memory.current": str(GIB)}
    assert available_memory_bytes(machine(cgroup_v2("", files))) == 3 * GIB


def test_page_cache_that_can_be_dropped_is_available(machine):
    files = {
        "memory.max": str(4 * GIB),
        "memory.current": str(3 * GIB),
        "memory.stat": f"anon 5\ninactive_file {2 * GIB}\nactive_file 7\n",
    }
    assert available_memory_bytes(machine(cgroup_v2("", files))) == 3 * GIB


def test_a_limit_above_what_the_machine_has_does_not_count(machine):
    files = {"memory.max": str(63 * GIB), "memory.current": "0"}
    assert available_memory_bytes(machine(cgroup_v2("", files))) == 32 * GIB


def test_an_unlimited_group_below_a_limited_one_is_limited(machine):
    files = cgroup_v2("/pod/box", {"memory.max": "max", "memory.current": "1"}, path="/pod/box")
    files["sys/fs/cgroup/pod/memory.max"] = str(2 * GIB)
    files["sys/fs/cgroup/pod/memory.current"] = str(GIB)
    assert available_memory_bytes(machine(files)) == GIB


def test_usage_above_the_limit_leaves_nothing(machine):
    files = {"memory.max": str(GIB), "memory.current": str(2 * GIB)}
    assert available_memory_bytes(machine(cgroup_v2("", files))) == 0


def test_a_v1_limit_counts_with_its_childrens_page_cache(machine):
    files = {
        "memory.limit_in_bytes": str(4 * GIB),
        "memory.usage_in_bytes": str(3 * GIB),
        "memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\n",
    }
    assert available_memory_bytes(machine(cgroup_v1("memory", files))) == 2 * GIB


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("processor : 0\nflags\t\t: fpu amx_bf16\n", True),
        ("processor : 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor : 0\nflags\t\t: fpu avx2 avx512f\n", False),
        ("", False),
    ],
)
def test_fast_bfloat16_is_read_from_the_cpus_flags(machine, cpuinfo, fast):
    assert has_fast_bfloat16(machine({"proc/cpuinfo": cpuinfo})) is fast


def test_this_machine_has_threads_and_memory():
    assert usable_threads() >= 1
    assert available_memory_bytes() > 2**20
