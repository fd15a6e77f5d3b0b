"""Transformers' own continuous batching on the prompts that we served; part of `cuda_bench`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch


def transformers_rates(
    model_dir: Path,
    prompts: Mapping[int, Sequence[list[int]]],
    new_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    num_blocks: int | None = None,
) -> Iterator[tuple[int, float]]:
    """Each batch's size, and the tokens per second of its whole run, greedy.

    `num_blocks` bounds its cache, which takes most of the device's memory by default: of a CPU's
    too. Every batch is served twice by one manager, so that what it records is recorded by the
    second time, and no prompt is found in its cache. Raises RuntimeError where answers are missing
    or short: transformers reports its failures in a log.
    """
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, attn_implementation="sdpa"
    ).to(device)
    settings = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
    for batch, inputs in prompts.items():
        # One for each manager, which writes into it what it decides.
        sizes = ContinuousBatchingConfig(
            allow_block_sharing=False,
            num_blocks=num_blocks,
            max_batch_tokens=None if num_blocks is None else 256,
        )
        rate = 0.0
        try:
            for _ in range(2):
                begun = time.perf_counter()
                answers = model.generate_batch(
                    inputs=inputs,
                    generation_config=settings,
                    continuous_batching_config=sizes,
                    persistent_manager=True,
                )
                seconds = time.perf_counter() - begun
                made = sum(len(answer.generated_tokens) for answer in answers.values())
                if made != batch * new_tokens:
                    raise RuntimeError(
                        f"transformers made {made} tokens of {batch * new_tokens} in batch {batch}"
                    )
                rate = made / seconds
        finally:
            # The next batch wants a manager of its own size.
            model.destroy_cached_continuous_batching_manager()
        yield batch, rate
