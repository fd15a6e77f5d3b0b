"""What a server's vocabulary offers for prompts of exact length, asked over HTTP once per run.

Three ways, the best that the server allows, each said in the output:
- `/tokenize` (and `/detokenize`): words that are one token each, found and verified; exact, for
  text and chats.
- token ids as the prompt of /v1/completions: exact, of no meaning.
- common words, whose mean number of tokens is measured: approximate.
"""

import asyncio
import random
from collections.abc import Sequence

from clients.bench.plan import BadInput
from clients.bench.prompts import Vocabulary
from clients.bench.server import Server, ServerFailure
from clients.bench.words import COMMON_WORDS

# Ids that stand for ordinary text in nearly every vocabulary: past bytes and special tokens.
_ID_RANGE = (1_000, 20_000)
_BLOCK = 4096
_MAX_WORDS = 6000
_FEW_OPENINGS, _MAX_OPENINGS = 16, 192
_MIN_WORDS = 64
_GROUP = 128
_SMALL_GROUP = 8
_AT_ONCE = 8


async def find_vocabulary(server: Server, *, chat: bool, ids_allowed: bool) -> Vocabulary:
    """Raises `BadInput` if the server answers no request at all. `ids_allowed`: prompts need not
    be text."""
    try:
        return await _by_tokenizing(server, chat)
    except ServerFailure as failure:
        why = str(failure)
    if ids_allowed and not chat:
        try:
            return await _by_ids(server, why)
        except ServerFailure:
            pass
    try:
        return await _by_counting(server, chat, why)
    except ServerFailure as failure:
        raise BadInput(f"the server does not answer a test request: {failure}") from None


async def _by_tokenizing(server: Server, chat: bool) -> Vocabulary:
    sample = COMMON_WORDS[0]
    plain = len(await server.tokenize(sample, special=False))
    if plain < 1:
        raise ServerFailure("/tokenize finds no tokens")
    special = len(await server.tokenize(sample, special=True)) - plain
    candidates = await _single_tokens(server)
    source = "/tokenize and /detokenize" if candidates else "/tokenize"
    candidates = candidates or list(COMMON_WORDS)
    random.Random(0).shuffle(candidates)
    candidates = candidates[:_MAX_WORDS]
    # One opening is enough to try the words with; a vocabulary that has none is soon given up.
    first = await _good_openings(server, candidates[:_FEW_OPENINGS], special)
    if not first:
        raise ServerFailure("no common word is one token at the beginning of a text")
    words = await _good_words(server, candidates, first[0], special)
    if len(words) < _MIN_WORDS:
        raise ServerFailure(f"only {len(words)} words are one token each")
    openings = await _good_openings(server, words[:_MAX_OPENINGS], special)
    return Vocabulary(
        source=f"{len(words)} words of one token each, by {source}",
        exact=True,
        words=tuple(words),
        openings=tuple(openings or first),
        overhead=await _template_size(server, first[0]) if chat else special,
    )


async def _template_size(server: Server, word: str) -> int:
    """Tokens of a chat with one message beside the message's own. A server that tokenizes no
    messages leaves the template uncounted."""
    try:
        return await server.count_chat_tokens(word) - 1
    except ServerFailure:
        return 0


async def _single_tokens(server: Server) -> list[str]:
    """Words that are one token behind a space, from the vocabulary itself: many ids are turned into
    text at once, with line ends between them. Empty where that does not work."""
    found: dict[str, None] = {}
    try:
        around = await server.tokenize("a\nb", special=False)
        if len(around) != 3:
            return []
        for begin in range(0, 4 * _BLOCK, _BLOCK):
            ids = range(begin, begin + _BLOCK)
            mixed = [token for token_id in ids for token in (token_id, around[1])]
            pieces = (await server.detokenize(mixed)).split("\n")
            found.update((piece[1:], None) for piece in pieces if _is_word_behind_a_space(piece))
    except ServerFailure:
        pass  # the vocabulary ends here, or there is no such endpoint
    return list(found)


def _is_word_behind_a_space(text: str) -> bool:
    word = text[1:]
    return (
        text[:1] == " " and len(word) > 1 and word.isascii() and word.isalpha() and word.islower()
    )


async def _good_openings(server: Server, words: Sequence[str], special: int) -> list[str]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def is_one(word: str) -> bool:
        async with places:
            return len(await server.tokenize(word)) == special + 1

    good = await asyncio.gather(*(is_one(word) for word in words))
    return [word for word, one in zip(words, good, strict=True) if one]


async def _good_words(
    server: Server, words: Sequence[str], opening: str, special: int
) -> list[str]:
    """Those that are one token each behind a space. Raises `ServerFailure` as soon as it is clear
    that this vocabulary has few such words."""
    good: list[str] = []
    for begin in range(0, len(words), _GROUP):
        group = words[begin : begin + _GROUP]
        extra = await _extra_tokens(server, group, opening, special)
        if extra > len(group) / 2:
            raise ServerFailure(f"words come to {extra / len(group) + 1:.1f} tokens each")
        good += group if extra == 0 else await _sieve(server, group, opening, special)
    return good


async def _sieve(server: Server, words: Sequence[str], opening: str, special: int) -> list[str]:
    """What is left of a group in which some words are several tokens: small groups are counted, and
    dropped as a whole if they are off. There are words enough."""
    small = [words[begin : begin + _SMALL_GROUP] for begin in range(0, len(words), _SMALL_GROUP)]
    extras = await asyncio.gather(
        *(_extra_tokens(server, group, opening, special) for group in small)
    )
    return [word for group, extra in zip(small, extras, strict=True) if not extra for word in group]


async def _extra_tokens(server: Server, words: Sequence[str], opening: str, special: int) -> int:
    """By how many tokens these words are more than one each."""
    count = len(await server.tokenize(" ".join((opening, *words))))
    return count - special - 1 - len(words)


async def _by_ids(server: Server, why: str) -> Vocabulary:
    """Ids are taken if the server counts as many tokens as it was given."""
    try:
        ids = sorted(set(await server.tokenize(" ".join(COMMON_WORDS), special=False)))
    except ServerFailure:
        ids = list(range(*_ID_RANGE))
    probe = ids[:: max(len(ids) // 15, 1)]
    if (counted := await server.count_by_completing(probe)) != len(probe):
        raise ServerFailure(f"{len(probe)} ids were counted as {counted} tokens")
    return Vocabulary(source=f"{len(ids)} token ids ({why})", exact=True, ids=tuple(ids))


async def _by_counting(server: Server, chat: bool, why: str) -> Vocabulary:
    """A few words give what surrounds a text, many how many tokens a word has."""
    short, long = COMMON_WORDS[:8], COMMON_WORDS[:264]
    few = await _count(server, " ".join(short), chat)
    many = await _count(server, " ".join(long), chat)
    if few is None or many is None or many <= few:
        return Vocabulary(
            source=f"common words, one token each assumed ({why}; no usage either)",
            exact=False,
            words=COMMON_WORDS,
            openings=COMMON_WORDS,
        )
    per_word = (many - few) / (len(long) - len(short))
    return Vocabulary(
        source=f"common words, {per_word:.3f} tokens each as measured ({why})",
        exact=False,
        words=COMMON_WORDS,
        openings=COMMON_WORDS,
        per_word=per_word,
        overhead=max(round(few - len(short) * per_word), 0),
    )


async def _count(server: Server, text: str, chat: bool) -> int | None:
    """Tokens of a prompt by /tokenize, else by the usage of a short answer."""
    try:
        return await server.count_chat_tokens(text) if chat else len(await server.tokenize(text))
    except ServerFailure:
        return await server.count_by_completing(text)
