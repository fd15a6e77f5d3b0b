"""The five workloads, as flags of `octavo bench` and of `vllm bench serve`.

Prompts are made anew for every pass: with pages of 16 tokens a repeated prompt is a prefix hit.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Workload:
    """`longest` is the most tokens that one request needs, prompt and answer."""

    name: str
    what: str
    concurrency: int
    num_prompts: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    prefix_groups: int = 0

    @property
    def longest(self) -> int:
        return self.prefix_len + self.input_len + self.output_len

    def cut(self, share: float) -> "Workload":
        """The same with `share` of the prompts: at least as many as run at once."""
        return replace(self, num_prompts=self.scaled(share))

    def describe(self) -> str:
        return f"{self.what}, {self.num_prompts} prompts"

    def octavo_flags(self) -> list[str]:
        flags = [
            *("--max-concurrency", str(self.concurrency)),
            *("--num-prompts", str(self.num_prompts)),
            *("--input-len", str(self.input_len)),
            *("--output-len", str(self.output_len)),
        ]
        if self.prefix_len:
            flags += [
                *("--dataset", "prefix"),
                *("--prefix-len", str(self.prefix_len)),
                *("--prefix-groups", str(self.prefix_groups)),
            ]
        return flags

    def vllm_flags(self) -> list[str]:
        """The same for `vllm bench serve`; random prompts only."""
        return [
            *("--dataset-name", "random"),
            *("--max-concurrency", str(self.concurrency)),
            *("--num-prompts", str(self.num_prompts)),
            *("--random-input-len", str(self.input_len)),
            *("--random-output-len", str(self.output_len)),
        ]

    def scaled(self, share: float) -> int:
        return max(round(self.num_prompts * share), min(self.concurrency, self.num_prompts))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "1 user, 128 in, 128 out", 1, 6, 128, 128),
        Workload("W2", "16 at once, 128/128", 16, 64, 128, 128),
        Workload("W3", "64 at once, 128/128", 64, 192, 128, 128),
        Workload("W4", "16 at once, 2 prefixes of 1024 + 64, 64 out", 16, 64, 64, 64, 1024, 2),
        Workload("W5", "8 at once, 2048/64", 8, 24, 2048, 64),
    )
}
