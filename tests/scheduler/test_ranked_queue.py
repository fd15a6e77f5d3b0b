"""The order of sequences, and what may happen to a queue while it is walked."""

import random

import pytest

from scheduler import Request, SamplingParams, Sequence
from scheduler.queue import RankedQueue


def sequence(arrival, choice=0):
    request = Request(
        request_id=f"{arrival}",
        prompt_token_ids=(1,),
        params=SamplingParams(n=choice + 1),
        max_tokens=1,
        seed=0,
    )
    return Sequence(request, (choice,), arrival)


@pytest.fixture
def members():
    return [sequence(arrival, choice) for arrival in range(5) for choice in range(2)]


@pytest.fixture
def queue(members):
    """Filled in another order than that of the ranks."""
    queue = RankedQueue()
    for member in random.Random(0).sample(members, len(members)):
        queue.add(member)
    return queue


def test_earlier_arrivals_come_first_and_then_lower_choices(queue, members):
    assert list(queue) == members
    assert queue.last is members[-1]
    assert len(queue) == len(members)


def test_a_member_that_left_and_came_back_has_its_old_place(queue, members):
    queue.remove(members[2])
    assert list(queue) == members[:2] + members[3:]
    queue.add(members[2])
    assert list(queue) == members


def test_members_may_leave_while_the_queue_is_walked(queue, members):
    seen = []
    for member in queue:
        seen.append(member)
        if member is not members[-1]:
            queue.remove(member)
    assert seen == members
    assert list(queue) == members[-1:]


def test_an_empty_queue_has_no_last_member():
    queue = RankedQueue()
    assert list(queue) == []
    with pytest.raises(IndexError):
        queue.last  # noqa: B018


def test_a_member_that_is_not_there_cannot_leave(queue):
    with pytest.raises(KeyError):
        queue.remove(sequence(99))
