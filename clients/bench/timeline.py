"""What happened when: requests waiting and answering, and tokens per second, over the run.

Pure: records in, equally spaced bins out. "Waiting" is sent and without text yet, "answering" has
had its first text: the client cannot see further into the server.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from clients.bench.records import RequestRecord

_BINS = 240
# Bins below this say more of single steps than of the run.
_MIN_WIDTH = 0.1


def timeline(records: Sequence[RequestRecord], duration: float) -> dict[str, Any]:
    """`width` is the bins' in seconds; `waiting`, `answering` and `failed` are mean numbers and
    counts per bin, `tokens_per_s` a rate."""
    width = max(duration / _BINS, _MIN_WIDTH)
    count = max(int(duration / width + 0.999999), 1)
    waiting, answering = [0.0] * count, [0.0] * count
    tokens, failed = [0.0] * count, [0] * count
    for record in records:
        if record.sent is None:
            continue
        if record.failure is not None:
            failed[min(int(record.sent / width), count - 1)] += 1
        if not record.text_times:
            continue
        first, last = record.text_times[0], record.end or record.text_times[-1]
        _cover(waiting, record.sent, first, width)
        _cover(answering, first, last, width)
        weight = record.num_output / len(record.text_times)
        tokens[min(int(first / width), count - 1)] += weight
        # A token was in the making since the one before: counted when it came, a server's steps
        # would beat against the bins.
        for earlier, later in itertools.pairwise(record.text_times):
            if later > earlier:
                _cover(tokens, earlier, later, width, weight / (later - earlier))
            else:
                tokens[min(int(later / width), count - 1)] += weight
    return {
        "width": width,
        "waiting": [round(seconds / width, 3) for seconds in waiting],
        "answering": [round(seconds / width, 3) for seconds in answering],
        "tokens_per_s": [round(amount / width, 2) for amount in tokens],
        "failed": failed,
    }


def _cover(bins: list[float], begin: float, end: float, width: float, amount: float = 1.0) -> None:
    """Add the seconds from `begin` to `end`, times `amount`, to the bins that they lie in."""
    place = int(begin / width)
    while begin < end and place < len(bins):
        edge = min((place + 1) * width, end)
        bins[place] += (edge - begin) * amount
        begin, place = edge, place + 1
