"""Which spans of which passages an answer is given as its sources."""

from hypothesis import given
from hypothesis import strategies as st

from app.citations import cite
from retriever import Passage

TEXT = "The pump was built in 1931. Its rated flow is 4.2 cubic metres a second. Oil is changed every 400 hours."


def passage(text: str, start: int = 100, number: int = 0) -> Passage:
    return Passage(f"doc_a:{number}", "doc_a", "Handbook", 3, start, start + len(text), text)


def test_a_sentence_is_cited_with_the_exact_span_it_rests_on() -> None:
    (citation,) = cite("The rated flow is 4.2 cubic metres a second.", [passage(TEXT)])
    (source,) = citation.sources
    assert source.cited_text == "Its rated flow is 4.2 cubic metres a second."
    assert TEXT[source.start - 100 : source.end - 100] == source.cited_text
    assert (source.page, source.document_id, source.passage_id) == (3, "doc_a", "doc_a:0")
    assert citation.text == "The rated flow is 4.2 cubic metres a second."


def test_a_bare_number_is_cited() -> None:
    (citation,) = cite("1931", [passage(TEXT)])
    assert citation.sources[0].cited_text == "The pump was built in 1931."


def test_a_sentence_without_support_has_no_citation() -> None:
    assert cite("Penguins live in Antarctica.", [passage(TEXT)]) == []


def test_words_that_are_everywhere_support_nothing() -> None:
    text = " ".join(f"The pump number {i} turns." for i in range(20))
    assert cite("The pump.", [passage(text)]) == []


def test_each_sentence_finds_its_own_passage() -> None:
    other = passage("The gate weighs 900 kilograms.", start=5000, number=7)
    citations = cite("Oil is changed every 400 hours. The gate weighs 900 kilograms.", [passage(TEXT), other])
    assert [citation.sources[0].passage_id for citation in citations] == ["doc_a:0", "doc_a:7"]


def test_the_question_tells_which_of_two_sentences_a_bare_answer_rests_on() -> None:
    text = "The bridge was opened in 1931. The main pump was built in 1931. The tower fell in 1950."
    for question, cited in (("When was the pump built?", "The main pump"), ("When did the bridge open?", "The bridge")):
        (citation,) = cite("1931", [passage(text)], question)
        assert [source.cited_text.startswith(cited) for source in citation.sources] == [True]


def test_list_numbers_are_no_sentences_and_lone_words_no_sources() -> None:
    text = "3\n\n3. The pump turns at 285 revolutions a minute.\n\nPumps"
    (citation,) = cite("1. The pump turns at 285 revolutions.", [passage(text)])
    assert citation.start == 0
    assert [source.cited_text for source in citation.sources] == ["3. The pump turns at 285 revolutions a minute."]


def test_scripts_without_blanks() -> None:
    text = "水泵建于1931年。额定流量为每秒四立方米。"
    (citation,) = cite("额定流量是每秒四立方米。", [passage(text)])
    assert citation.sources[0].cited_text == "额定流量为每秒四立方米。"


@given(st.text(max_size=300), st.lists(st.text(max_size=300), max_size=4))
def test_spans_are_always_true(answer: str, texts: list[str]) -> None:
    passages = [passage(text, start=i * 1000, number=i) for i, text in enumerate(texts)]
    for citation in cite(answer, passages):
        assert answer[citation.start : citation.end] == citation.text
        for source in citation.sources:
            text = texts[int(source.passage_id.split(":")[1])]
            offset = int(source.passage_id.split(":")[1]) * 1000
            assert text[source.start - offset : source.end - offset] == source.cited_text
