"""Where requests come from: made up by rule, or read from a file.

`load_workload` gives the sessions of a run. Each maker is a module of its own; what they share,
`DatasetOptions` and reading files, is in `source`.
"""

from clients.bench.datasets.load import DATASETS, load_workload, trace_format
from clients.bench.datasets.source import DatasetOptions

__all__ = ["DATASETS", "DatasetOptions", "load_workload", "trace_format"]
