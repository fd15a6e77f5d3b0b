"""From the name of a dataset to its workload: the one place that knows all of them."""

from pathlib import Path

from clients.bench.datasets.prompt_file import prompt_file
from clients.bench.datasets.source import DatasetOptions, first_line
from clients.bench.datasets.synthetic import conversations, random_prompts, shared_prefixes
from clients.bench.datasets.traces import azure, burstgpt, mooncake
from clients.bench.plan import BadInput, Workload
from clients.bench.prompts import PromptMaker

# By name, what the user is told of it.
DATASETS = {
    "random": "random prompts of --input-len tokens",
    "prefix": "prompts that share beginnings",
    "conversations": "several turns each, with pauses between them",
    "prompts": "a JSONL file of prompts, messages or turns",
    "mooncake": "a trace with times, lengths and shared blocks (JSONL)",
    "azure": "a trace of Azure's LLM inference (CSV)",
    "burstgpt": "a trace of BurstGPT (CSV)",
}
TRACES = frozenset({"mooncake", "azure", "burstgpt"})
_MAKERS = {
    "random": random_prompts,
    "prefix": shared_prefixes,
    "conversations": conversations,
    "mooncake": mooncake,
    "azure": azure,
    "burstgpt": burstgpt,
}


def trace_format(path: Path) -> str:
    """Which of `TRACES` a file is, by what its first line names. Raises `BadInput`."""
    first = first_line(path)
    for name, words in (
        ("mooncake", ("hash_ids", "input_length")),
        ("azure", ("ContextTokens",)),
        ("burstgpt", ("Response tokens",)),
    ):
        if all(word in first for word in words):
            return name
    raise BadInput(f"{path} line 1: none of the formats {', '.join(sorted(TRACES))}")


def load_workload(
    name: str, options: DatasetOptions, maker: PromptMaker | None, *, chat: bool
) -> Workload:
    """`maker` may be None for a file of prompts, which brings its own text. Raises `BadInput`."""
    if name == "prompts":
        return prompt_file(options, chat=chat)
    assert maker is not None
    return _MAKERS[name](options, maker)
