"""What must not depend on the kind of the database, and on how many processes share it."""

import io
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from app.sessions import SessionRecords, TurnRecord
from retriever import Document, Embedder, Retriever, lexical, open_database
from tests.postgres import new_database

Ingest = Callable[..., Document]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ranked(engine: Engine, passages: list[str], queries: list[list[str]]) -> list[list[int]]:
    with engine.begin() as connection:
        connection.execute(text(
            "INSERT INTO documents (document_id, tenant, collection, filename, title, status, progress, pages, "
            "passages, warnings, created_at) VALUES ('d', 't', 'c', '', '', 'ready', 1, 1, 1, '[]', '')"
        ))  # fmt: skip
        for number, passage in enumerate(passages, 1):
            values = {"number": number, "text": passage, "vector": b""}
            columns = 'number, document_id, ordinal, page, start, "end", text, vector'
            statement = f"INSERT INTO passages ({columns}) VALUES (:number, 'd', :number, 1, 0, 0, :text, :vector)"
            connection.execute(text(statement), values)
        lexical.add(connection, range(1, len(passages) + 1), passages)
        return [list(lexical.search(connection, "t", "c", words, 50)) for words in queries]


def bm25(passages: list[str], words: list[str], number: int) -> float:
    """By the formula, Robertson's with SQLite's k1 = 1.2, b = 0.75."""
    texts = [passage.split() for passage in passages]
    mean, mine = sum(map(len, texts)) / len(texts), texts[number - 1]
    score = 0.0
    for word in words:
        holders = sum(word in text for text in texts)
        rare = max(math.log((len(texts) - holders + 0.5) / (holders + 0.5)), 1e-6)
        times = mine.count(word)
        score += rare * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(mine) / mean))
    return score


def test_words_rank_passages_alike_on_both_databases(tmp_path: Path, postgres: str, embedder: Embedder) -> None:
    rng = random.Random(1)
    vocabulary = [f"word{i}" for i in range(60)]
    weights = [1 / (i + 1) for i in range(60)]
    passages = [" ".join(rng.choices(vocabulary, weights, k=rng.randint(3, 80))) for _ in range(200)]
    queries = [rng.sample(vocabulary, rng.randint(1, 6)) for _ in range(40)] + [["nowhere"]]
    found = []
    for url in (f"sqlite:///{tmp_path / 'words.db'}", new_database(postgres)):
        engine = open_database(url)
        Retriever(engine, embedder, tmp_path)
        found.append(ranked(engine, passages, queries))
        engine.dispose()
    by_sqlite, by_postgres = (
        [[bm25(passages, words, number) for number in numbers] for words, numbers in zip(queries, ranks, strict=True)]
        for ranks in found
    )
    # not the numbers: scores that differ in their last bit may change places
    assert [pytest.approx(scores, rel=1e-9) for scores in by_sqlite] == by_postgres
    assert all(scores == pytest.approx(sorted(scores, reverse=True)) for scores in by_postgres)
    assert {len(scores) for scores in by_sqlite} >= {0, 50}


def test_a_second_process_finds_what_the_first_one_read_and_deleted(
    retriever: Retriever, ingest: Ingest, database: Engine, embedder: Embedder, tmp_path: Path
) -> None:
    def found(who: Retriever, query: str) -> list[str]:
        return [hit.passage.text for hit in who.search("t", "default", query, 1)]

    other = Retriever(database, embedder, tmp_path / "other", shared=True)
    assert found(other, "feed pump") == []
    first = ingest("a.txt", "The feed pump runs at 12 bar.")
    assert found(other, "feed pump") == ["The feed pump runs at 12 bar."]
    # by meaning alone: no word of the query is in the passage
    assert other.search("t", "default", "feed pump", 1)[0].similarity > 0.5
    ingest("b.txt", "The sluice gate weighs 900 kilograms.")
    retriever.delete("t", first.document_id)
    assert found(other, "feed pump") == []
    assert found(other, "sluice gate") == ["The sluice gate weighs 900 kilograms."]


def test_each_process_ingests_what_was_uploaded_to_it(database: Engine, embedder: Embedder, tmp_path: Path) -> None:
    here, there = (Retriever(database, embedder, tmp_path / name, shared=True) for name in ("here", "there"))
    document = here.add("t", "default", "a.txt", io.BytesIO(b"The feed pump runs at 12 bar."))
    there.start()
    try:
        mine = there.add("t", "default", "b.txt", io.BytesIO(b"The sluice gate weighs 900 kilograms."))
        wait_for(lambda: there.document("t", mine.document_id).status == "ready")
        assert there.document("t", document.document_id).status == "queued"
        here.start()
        wait_for(lambda: there.document("t", document.document_id).status == "ready")
        here.stop()
    finally:
        there.stop()


def test_tables_are_made_once_when_processes_start_together(tmp_path: Path, postgres: str, embedder: Embedder) -> None:
    for url in (f"sqlite:///{tmp_path / 'new.db'}", new_database(postgres)):
        engines = [open_database(url) for _ in range(4)]

        def make(engine: Engine) -> None:
            Retriever(engine, embedder, tmp_path)
            SessionRecords(engine)

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(make, engines)) == [None] * 4
        for engine in engines:
            engine.dispose()


def test_characters_that_a_database_cannot_hold_change_no_offsets(
    records: SessionRecords, make_turn: Callable[..., TurnRecord]
) -> None:
    session_id = records.create("t", "default").session_id
    with records.lease("t", session_id, 10) as lease:
        records.commit_turn(lease, replace(make_turn(1, starts_over=True), answer="a\0b 🚀"))
    assert records.turns("t", session_id)[0].answer == "a\ufffdb 🚀"
    for unknown in ("ses\0", "ses_\ufffd"):
        with pytest.raises(Exception, match="session"):
            records.get("t", unknown)
