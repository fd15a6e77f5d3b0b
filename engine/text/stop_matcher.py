"""Finds stop strings in a text that arrives in pieces, and says what may be sent meanwhile.

An Aho-Corasick automaton over the stop strings: one step per character, however many strings there
are. The match that completes first wins; of those completing at one character, the longest. Held
back is exactly the longest end of the text that is a true prefix of a stop string, nothing else.
"""

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """One choice's search. `matched` is the stop string found; `feed` must not be called after it.

    States are nodes of the trie of all stop strings; being in one means that its path is the
    longest end of the text so far that begins some stop string.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """`stops` are non-empty; with `include_stop` the text is cut after a match, not before."""
        self.matched: str | None = None
        self._include_stop = include_stop
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]  # the longest proper end of the node's path that is a node too
        self._match: list[str | None] = [None]  # the longest stop string that the path ends with
        self._num_held = [0]  # characters at the path's end that may still grow into a match
        for stop in stops:
            self._insert(stop)
        self._link()
        self._state = 0
        self._held = ""

    def feed(self, text: str, *, honour: bool = True) -> str:
        """Take the next piece and return the text that may be sent now.

        With `honour` False a stop string completed in this piece is passed on as plain text; one
        that begins in it may still be completed later.
        """
        children, fallback, match = self._children, self._fallback, self._match
        state = self._state
        for position, char in enumerate(text, start=1):
            while state and char not in children[state]:
                state = fallback[state]
            state = children[state].get(char, 0)
            if honour and (stop := match[state]) is not None:
                self.matched = stop
                sent = self._held + text[:position]
                self._held = ""
                return sent if self._include_stop else sent[: len(sent) - len(stop)]
        self._state = state
        sent = self._held + text
        cut = len(sent) - self._num_held[state]
        self._held = sent[cut:]
        return sent[:cut]

    def flush(self) -> str:
        """The text has ended: what was held back."""
        held, self._held = self._held, ""
        self._state = 0
        return held

    def _insert(self, stop: str) -> None:
        node = 0
        for depth, char in enumerate(stop, start=1):
            if char not in self._children[node]:
                self._children[node][char] = len(self._children)
                self._children.append({})
                self._fallback.append(0)
                self._match.append(None)
                self._num_held.append(depth)
            node = self._children[node][char]
        self._match[node] = stop

    def _link(self) -> None:
        """Set the fallbacks, shallow nodes first, and what follows from them."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            shorter = self._fallback[node]
            if self._match[node] is None:
                self._match[node] = self._match[shorter]
            if not self._children[node]:
                # A whole stop string that begins no longer one: only its end may still grow.
                self._num_held[node] = self._num_held[shorter]
            for char, child in self._children[node].items():
                queue.append(child)
                while shorter and char not in self._children[shorter]:
                    shorter = self._fallback[shorter]
                self._fallback[child] = self._children[shorter].get(char, 0)
                shorter = self._fallback[node]
