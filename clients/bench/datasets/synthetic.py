"""Requests made up by rule: random prompts, shared prefixes, conversations.

Deterministic by seed. Random prompts share nothing, not even their first token where the vocabulary
has enough of them.
"""

import random
from collections.abc import Iterator
from functools import partial

from clients.bench.datasets.source import DatasetOptions
from clients.bench.lengths import Lengths
from clients.bench.plan import BadInput, Session, Turn, Workload
from clients.bench.prompts import Piece, PromptMaker

DEFAULT_OUTPUT = Lengths(128, 128)


def random_prompts(options: DatasetOptions, maker: PromptMaker) -> Workload:
    """Prompts of `input_len`, answers of `output_len`, nothing in common."""
    rng = random.Random(f"lengths {options.seed}")
    output_len = options.output_len or DEFAULT_OUTPUT

    def sessions() -> Iterator[Session]:
        for index in range(options.num_prompts):
            length = options.input_len.draw(rng)
            piece = Piece(f"random {index}", length, opening=index)
            content = partial(maker.prompt, [piece])
            yield Session((Turn(content, length, output_len.draw(rng)),))

    return Workload("random", sessions(), options.num_prompts, fixed_output=True)


def shared_prefixes(options: DatasetOptions, maker: PromptMaker) -> Workload:
    """Prompts that begin alike and end with `input_len` tokens of their own.

    The prefix of `prefix_len` tokens is a path down a tree of `prefix_depth` levels, each node
    having `prefix_groups` children: depth 1 is so many prefixes, depth 2 so many systems with so
    many documents each. All leaves are asked equally often, in random order.
    """
    depth, groups = options.prefix_depth, options.prefix_groups
    if depth > options.prefix_len:
        raise BadInput(f"--prefix-depth {depth} does not fit --prefix-len {options.prefix_len}")
    rng = random.Random(f"prefixes {options.seed}")
    output_len = options.output_len or DEFAULT_OUTPUT
    leaves = [index % groups**depth for index in range(options.num_prompts)]
    rng.shuffle(leaves)
    parts = [
        options.prefix_len * (level + 1) // depth - options.prefix_len * level // depth
        for level in range(depth)
    ]

    def sessions() -> Iterator[Session]:
        for index, leaf in enumerate(leaves):
            path = [leaf // groups ** (depth - level - 1) for level in range(depth)]
            pieces = [
                Piece(f"prefix {level} {node}", size, opening=path[0] if level == 0 else None)
                for level, (node, size) in enumerate(zip(path, parts, strict=True))
            ]
            own = options.input_len.draw(rng)
            content = partial(maker.prompt, [*pieces, Piece(f"own {index}", own)])
            yield Session((Turn(content, options.prefix_len + own, output_len.draw(rng)),))

    notes = (f"{groups**depth} prefixes of {options.prefix_len} tokens",)
    return Workload("prefix", sessions(), options.num_prompts, fixed_output=True, notes=notes)


def conversations(options: DatasetOptions, maker: PromptMaker) -> Workload:
    """`num_prompts` conversations of `turns` messages of `input_len` tokens each, on top of a
    common beginning of `system_len`. A turn is sent `think_time` after the answer to the one
    before; every turn's prompt holds all that was said."""
    rng = random.Random(f"conversations {options.seed}")
    output_len = options.output_len or DEFAULT_OUTPUT
    plans = []
    for index in range(options.num_prompts):
        turns = []
        for place in range(options.turns.draw(rng)):
            own = options.input_len.draw(rng)
            opening = None if options.system_len else index
            pieces = [Piece(f"turn {index} {place}", own, opening if place == 0 else None)]
            if options.system_len and place == 0:
                pieces.insert(0, Piece("system", options.system_len))
            turns.append(
                Turn(
                    partial(maker.prompt, pieces, whole=False),
                    None,
                    output_len.draw(rng),
                    options.think_time.draw(rng) / 1000,
                )
            )
        plans.append(Session(tuple(turns)))
    total = sum(len(plan.turns) for plan in plans)
    notes = (f"{len(plans)} conversations, {total} turns",)
    return Workload("conversations", iter(plans), total, fixed_output=True, notes=notes)
