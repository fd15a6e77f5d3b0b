"""A row that fails takes its own request with it and nothing else."""

import pytest

from scheduler import ChunkResult, FinishReason, Sample

PROMPTS = {f"{i}": [(7 * i + j) % 50 for j in range(3 + 2 * i)] for i in range(5)}


def add_all(server, max_tokens=8):
    for request_id, prompt in PROMPTS.items():
        server.add(request_id, prompt, max_tokens)


def of(chunk):
    return chunk.sequence.request.request_id


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("whole_chunk", [True, False])
def test_the_others_go_on(server, answer, step, whole_chunk):
    def fail(chunk, result):
        if of(chunk) != "2" or chunk.sequence.num_output < step:
            return result
        if whole_chunk:
            return ChunkResult(0, error="sampler raised")
        return ChunkResult(result.computed, (Sample(0, error="sampler raised"),))

    server.model.disturb = fail
    add_all(server)
    server.run()
    last = server.events["2", 0][-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, "sampler raised")
    assert server.tokens("2") == answer(PROMPTS["2"], 8)[:step]
    for request_id in ("0", "1", "3", "4"):
        assert server.tokens(request_id) == answer(PROMPTS[request_id], 8)
    assert (server.stats.finished_error, server.stats.finished_length) == (1, 4)


def test_what_a_failed_chunk_wrote_is_not_found_by_others(make_server, answer):
    server = make_server(max_num_batched_tokens=8)
    prompt = list(range(20))

    def spoil(chunk, result):
        if of(chunk) == "spoiled" and chunk.start == 8:
            for position in range(chunk.start, chunk.end):
                server.model.slots[chunk.sequence.table.slot(position)] = 10**6
            return ChunkResult(0, error="not finite")
        return result

    server.model.disturb = spoil
    server.add("spoiled", prompt, 5)
    server.run()
    server.add("again", prompt, 5)
    server.run()
    assert server.events["again", 0][0].num_cached == 8
    assert server.tokens("again") == answer(prompt, 5)


def test_a_result_with_another_number_of_chunks_is_refused(server):
    add_all(server)
    plan = server.plan()
    result = server.model.execute(plan)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        server.scheduler.commit(plan, type(result)(result.chunks[:-1]), 0.0)
