"""Stop strings: which tokens of an answer are certain to come before any of them."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from app.engine.text_stream import TextStream


class StopStrings:
    """`push` token ids until one completes a stop string: it is then `found`, and the answer is the text of all ids
    that were returned, and behind it `tail`. `finish` returns the rest of an answer that ends otherwise.

    Where strings overlap, the one that is complete first counts; what a token cuts through makes no difference.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self._strings = strings
        self._stream = TextStream(tokenizer)
        self._unseen: list[int] = []  # tokens whose text is not certain yet, or empty
        self._held: list[tuple[list[int], int]] = []  # tokens, and where in the text they end
        self._released = 0  # characters
        self._end: int | None = None

    @property
    def found(self) -> bool:
        """Whether the answer is over."""
        return self._end is not None

    @property
    def tail(self) -> str:
        """The beginning of the token that the stop string cuts through."""
        return "" if self._end is None else self._stream.text[self._released : self._end]

    def push(self, token_id: int) -> list[int]:
        """The ids whose text is now known to come before any stop string."""
        if not self._strings:
            return [token_id]
        self._unseen.append(token_id)
        if not (new := self._stream.push(token_id)):
            return []
        text = self._stream.text
        self._held.append((self._unseen, len(text)))
        self._unseen = []
        self._end = self._first(text, len(text) - len(new))
        return self._release(self._certain(text) if self._end is None else self._end)

    def finish(self) -> list[int]:
        """The ids that were held back and turned out to begin no stop string."""
        return [*self._release(len(self._stream.text)), *self._unseen]

    def _first(self, text: str, seen: int) -> int | None:
        """Where the stop string begins that is complete first, if one ends behind `seen` characters."""
        found = []
        for string in self._strings:
            if (start := text.find(string, max(seen - len(string) + 1, 0))) >= 0:
                found.append((start + len(string), start))
        return min(found)[1] if found else None

    def _certain(self, text: str) -> int:
        """Characters before the first one that could begin a stop string."""
        could = [length for string in self._strings for length in range(len(string)) if text.endswith(string[:length])]
        return len(text) - max(could)

    def _release(self, end: int) -> list[int]:
        released: list[int] = []
        while self._held and self._held[0][1] <= end:
            token_ids, self._released = self._held.pop(0)
            released += token_ids
        return released
