"""Token ids to text, piece by piece, never cutting a character in two."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"


class TextStream:
    """`push` token ids one by one; each call returns the text that is now certain. `finish` returns the rest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._sent = ""

    def push(self, token_id: int) -> str:
        """The new text, empty while a character is incomplete."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT):
            return ""
        return self._advance(text)

    def finish(self, tail: str = "") -> str:
        """What is left, and `tail` behind it. A character that the last token leaves incomplete is dropped."""
        return self._advance(self._decode(self._ids).rstrip(REPLACEMENT) + tail)

    @property
    def text(self) -> str:
        """All text sent so far."""
        return self._sent

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids pushed so far."""
        return self._ids

    def _advance(self, text: str) -> str:
        new = text[len(self._sent) :]
        self._sent += new
        return new

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text.lstrip()  # models like to begin with a blank; nobody wants to read one
