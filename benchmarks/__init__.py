"""Measuring Octavo beside its peers: fixed workloads, servers started and stopped, one table.

`python -m benchmarks.run` (`make bench`) is the command; `python -m benchmarks.cross_check` holds
our load test against `vllm bench serve`. Both use `octavo bench` as any user would.
"""
