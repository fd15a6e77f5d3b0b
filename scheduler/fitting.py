"""What could not run even with the whole server to itself. Asked at the door and by `Scheduler`."""

from scheduler.request import Request
from scheduler.sampling_params import ParameterError


def check_fits(request: Request, *, num_pages: int, page_size: int, max_num_seqs: int) -> None:
    """Refuse a request that could not run even with the whole server to itself.

    Raises `ParameterError` with both numbers.
    """
    params = request.params
    if not request.prompt_token_ids:
        raise ParameterError("prompt", "prompt must hold at least one token")
    if params.n > max_num_seqs:
        raise ParameterError("n", f"n is {params.n}, the server runs {max_num_seqs} sequences")
    # The last generated token is returned, but never written to the cache.
    num_tokens = len(request.prompt_token_ids) + request.max_tokens - 1
    num_slots = num_pages * page_size
    if -(-num_tokens // page_size) > num_pages:
        raise ParameterError(
            "prompt" if len(request.prompt_token_ids) > num_slots else "max_tokens",
            f"the prompt's {len(request.prompt_token_ids)} tokens and max_tokens "
            f"{request.max_tokens} need {num_tokens} tokens of cache, the whole KV cache holds "
            f"{num_slots}",
        )
