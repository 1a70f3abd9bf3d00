"""The lexical leg: words are made here, and indexed by what the database has for it (`fts5`, `bm25`).

The tokenizers of databases make one word of a Japanese sentence and single letters of a Hindi one. Scripts without
blanks between words are indexed as characters and pairs of characters; marks that writers leave out are left out.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from types import ModuleType

from sqlalchemy import Connection

from retriever import bm25, fts5

MAX_QUERY_WORDS = 256  # of a pasted page the first words do

# Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer
_UNSPACED = (
    r"\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
# the vowel signs of Indian scripts are no letters to `re`, but parts of words
_WORD = re.compile(rf"(?P<run>[{_UNSPACED}]+)|(?:(?![_{_UNSPACED}])[\w\u0900-\u0963\u0970-\u0dff\u0f00-\u0fff])+")
# accents, Hebrew points, Arabic vowels and the stretched line
_OPTIONAL_MARKS = re.compile(r"[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed]")

STOP_WORDS = frozenset(
    "a about also am an and any are as at be been but by can could did do does for from had has have he her his "
    "how i if in into is it its just may me my no not of on or our please she should so some such tell than that "
    "the their them then there these they this those to us was we were what when where which while who whose why "
    "will with would yes you your".split()
)


def passage_words(passage: str) -> list[str]:
    """The words of a passage, in order: as they are indexed."""
    return list(_words(passage, characters=True))


def content_words(query: str) -> list[str]:
    """The words of a query that say what it is about, in order, each once."""
    words = dict.fromkeys(_words(query, characters=False))
    return [word for word in words if word not in STOP_WORDS]


def coverage(words: Sequence[str], passage: str) -> float:
    """Share of a query's content words that a passage holds, 0 to 1."""
    held = set(passage_words(passage))
    return sum(word in held for word in words) / max(len(words), 1)


def search(connection: Connection, tenant: str, collection: str, words: Sequence[str], limit: int) -> dict[int, float]:
    """BM25 of the passages that hold some of a query's content words, by number, best first."""
    if not words:
        return {}
    scores: dict[int, float] = _index(connection).search(connection, tenant, collection, words[:MAX_QUERY_WORDS], limit)
    return scores


def create(connection: Connection) -> None:
    """Make the tables that are missing."""
    _index(connection).create(connection)


def add(connection: Connection, numbers: Sequence[int], texts: Sequence[str]) -> None:
    """Index passages."""
    _index(connection).add(connection, numbers, [passage_words(passage) for passage in texts])


def remove(connection: Connection, document_id: str) -> None:
    """Forget a document's passages; before their rows are deleted."""
    _index(connection).remove(connection, document_id)


def _index(connection: Connection) -> ModuleType:
    return fts5 if connection.dialect.name == "sqlite" else bm25


def _words(source: str, *, characters: bool) -> Iterator[str]:
    decomposed = unicodedata.normalize("NFKD", source.casefold())
    plain = unicodedata.normalize("NFKC", _OPTIONAL_MARKS.sub("", decomposed)).casefold()
    for found in _WORD.finditer(plain):
        run = found["run"]
        if run is None:
            yield found.group()
            continue
        yield from (run[i : i + 2] for i in range(len(run) - 1))
        if characters or len(run) == 1:
            yield from run
