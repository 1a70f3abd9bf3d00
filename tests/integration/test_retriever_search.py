"""Searches on real documents: what is found, what is refused, and what another tenant sees."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retriever import Document, Retriever

Ingest = Callable[..., Document]

PUMP = "# Pump handbook\n\nThe feed pump runs at 12 bar. Its seal is replaced every 4,000 hours of operation."
BREAD = "# Sourdough\n\nThe dough rests for eighteen hours in a cool room before it is baked at 240 degrees."


def texts(retriever: Retriever, query: str, tenant: str = "t", collection: str = "default") -> list[str]:
    return [hit.passage.text for hit in retriever.search(tenant, collection, query, 5)]


def test_a_question_finds_its_passage_with_document_and_offsets(retriever: Retriever, ingest: Ingest) -> None:
    document = ingest("pump.md", PUMP)
    ingest("bread.md", BREAD)
    hit = retriever.search("t", "default", "How often must the pump's seal be replaced?", 5)[0]
    assert hit.passage.document_id == document.document_id
    assert hit.passage.title == "Pump handbook"
    assert hit.passage.page == 1
    assert hit.passage.text == PUMP[hit.passage.start : hit.passage.end]
    assert 0.3 < hit.similarity <= 1
    assert retriever.passages("t", [hit.passage.passage_id]) == [hit.passage]


def test_a_question_about_something_else_finds_nothing(retriever: Retriever, ingest: Ingest) -> None:
    ingest("pump.md", PUMP)
    ingest("bread.md", BREAD)
    for query in ("Who won the world cup in 1998?", "capital of Mongolia", "what is it?", "", " ", "???"):
        assert texts(retriever, query) == []
    assert texts(retriever, "pump") == [PUMP]


def test_a_rare_word_finds_its_passage_though_its_meaning_is_unknown(retriever: Retriever, ingest: Ingest) -> None:
    ingest("codes.txt", "Error ZX-48113 means that the feed valve is stuck.")
    ingest("pump.md", PUMP)
    assert "ZX-48113" in texts(retriever, "ZX-48113")[0]


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。", "猫の名前"),
        ("جهاز الضخ يعمل بضغط اثني عشر بارا ويستبدل الختم كل سنة.", "متى يستبدل الختم"),
        ("ปั๊มน้ำทำงานที่ความดันสิบสองบาร์", "ความดัน"),
        ("पंप बारह बार के दबाव पर चलता है।", "पंप दबाव"),
    ],
)
def test_every_script_is_found_by_its_words(retriever: Retriever, ingest: Ingest, content: str, query: str) -> None:
    ingest("pump.md", PUMP)
    ingest("a.txt", content)
    assert texts(retriever, query)[0] == content


def test_tenants_and_collections_see_only_their_own(retriever: Retriever, ingest: Ingest) -> None:
    document = ingest("pump.md", PUMP)
    passage_id = f"{document.document_id}:0"
    assert texts(retriever, "feed pump") == [PUMP]
    assert texts(retriever, "feed pump", tenant="other") == []
    assert texts(retriever, "feed pump", collection="other") == []
    assert retriever.documents("other") == []
    assert retriever.documents("t", "other") == []
    assert retriever.passages("other", [passage_id]) == []
    assert [passage.passage_id for passage in retriever.passages("t", [passage_id])] == [passage_id]


def test_identical_passages_stay_apart(retriever: Retriever, ingest: Ingest) -> None:
    first, second = ingest("a.md", PUMP), ingest("b.md", PUMP)
    found = {hit.passage.document_id for hit in retriever.search("t", "default", "feed pump", 5)}
    assert found == {first.document_id, second.document_id}


def test_a_copy_of_a_document_takes_no_other_passage_s_place(retriever: Retriever, ingest: Ingest) -> None:
    for name in ("a.md", "b.md", "c.md"):
        ingest(name, PUMP)
    ingest("other.md", "# Pump store\n\nSpare parts of the feed pump lie in hall four, beside the seals.")
    found = [hit.passage.text for hit in retriever.search("t", "default", "feed pump seal", 2)]
    assert len(set(found)) == 2


def test_passages_come_in_the_order_asked_for(retriever: Retriever, ingest: Ingest) -> None:
    document = ingest("long.txt", "\n\n".join(f"Paragraph {i}. " + "word " * 150 for i in range(5)))
    assert document.passages >= 5
    wanted = [f"{document.document_id}:{i}" for i in (4, 0, 2)]
    asked = [wanted[0], "x", f"{document.document_id}:99", f"{document.document_id}:²", wanted[1], "a:b:1", wanted[2]]
    assert [passage.passage_id for passage in retriever.passages("t", asked)] == wanted


@pytest.mark.parametrize(
    "query", ['"* NEAR(', "a AND OR NOT", "words:feed", "^pump -feed +", "'); DROP TABLE x;--", "*"]
)
def test_hostile_queries_are_only_words(retriever: Retriever, ingest: Ingest, query: str) -> None:
    ingest("pump.md", PUMP)
    retriever.search("t", "default", query, 5)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=60), top_k=st.integers(1, 200))
def test_no_query_raises(retriever: Retriever, query: str, top_k: int) -> None:
    assert len(retriever.search("t", "default", query, top_k)) <= top_k


def test_a_pasted_book_as_a_query(retriever: Retriever, ingest: Ingest) -> None:
    ingest("pump.md", PUMP)
    retriever.search("t", "default", " ".join(f"word{i}" for i in range(20_000)), 5)


def test_a_deleted_document_is_found_no_more(retriever: Retriever, ingest: Ingest) -> None:
    document = ingest("pump.md", PUMP)
    ingest("other.md", PUMP + " Another edition.")
    assert len(texts(retriever, "feed pump")) == 2
    retriever.delete("t", document.document_id)
    assert len(texts(retriever, "feed pump")) == 1
