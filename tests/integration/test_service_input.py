"""Bad input: each gets the contract's error, and nothing is lost."""

import contextlib
import io
import socket
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

Upload = Callable[..., dict[str, Any]]


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert "Traceback" not in error["message"]
    return error


def post_file(http: httpx.Client, name: str, content: bytes) -> httpx.Response:
    return http.post("/documents", files={"file": (name, content)})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"question": ""}, "question"),
        ({"question": "   \n"}, "question"),
        ({}, "question"),
        ({"question": "why?", "top_k": 0}, "top_k"),
        ({"question": "why?", "top_k": 10_000}, "top_k"),
        ({"question": "why?", "max_tokens": 100_000}, "max_tokens"),
        ({"question": "why?", "temperature": 9}, "temperature"),
        ({"question": "why?", "top_p": 0}, "top_p"),
        ({"question": "why?", "top_p": 1.01}, "top_p"),
        ({"question": "why?", "seed": -1}, "seed"),
        ({"question": "why?", "seed": 2**63}, "seed"),
        ({"question": "why?", "seed": 0.5}, "seed"),
        ({"question": "why?", "stop": 7}, "stop"),
        ({"question": "why?", "stop": ""}, "stop"),
        ({"question": "why?", "stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"question": "why?", "stop": ["a", "x" * 65]}, "stop"),
        ({"question": "why?", "stop": ["a", 7]}, "stop"),
        ({"question": "why?", "collection": "../etc"}, "collection"),
        ({"question": "why?", "surprise": 1}, "surprise"),
        ({"question": 7}, "question"),
    ],
)
def test_parameters_that_cannot_be_served(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    assert error_of(http.post("/ask", json=body), 422)["param"] == param


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_no_number_is_no_parameter(http: httpx.Client, name: str) -> None:
    content = f'{{"question": "why?", "{name}": NaN}}'
    answer = http.post("/ask", content=content, headers={"Content-Type": "application/json"})
    assert error_of(answer, 422)["param"] == name


def test_a_refused_stop_string_says_what_is_possible(http: httpx.Client) -> None:
    for stop, says in ((["a"] * 5, "up to 4 strings"), ("x" * 65, "1 to 64 characters")):
        assert says in error_of(http.post("/chat", json={"message": "why?", "stop": stop}), 422)["message"]


def test_a_question_of_100_000_characters(http: httpx.Client) -> None:
    error = error_of(http.post("/ask", json={"question": "why " * 25_000}), 422)
    assert error["code"] == "question_too_long"
    assert "at most" in error["message"]


def test_a_question_longer_than_the_context(http: httpx.Client, facts: str) -> None:
    question = "How often is the oil of the main pump changed? " + "pump oil " * 1500
    error = error_of(http.post("/ask", json={"question": question, "collection": facts}), 422)
    assert error["code"] == "question_too_long"
    assert "tokens" in error["message"]


@pytest.mark.parametrize("content", [b"{not json", b"[1, 2]", b"", b'"text"', b"\xff\xfe\x00"])
def test_json_that_is_not_what_it_should_be(http: httpx.Client, content: bytes) -> None:
    error_of(http.post("/ask", content=content, headers={"Content-Type": "application/json"}), 422)


def test_strange_text_in_a_question(http: httpx.Client, facts: str) -> None:
    body = '{"question": "Who is the night warden? \\u0000 \\ud800 \\u202e", "collection": "facts", "max_tokens": 4}'
    answer = http.post("/ask", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text


def test_empty_file(http: httpx.Client) -> None:
    assert "empty" in error_of(post_file(http, "a.txt", b""), 422)["message"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.exe", b"MZ"),
        ("noname", b"text"),
        ("a.pdf", b"\x89PNG\r\n\x1a\n" + b"x" * 50),
        ("a.txt", b"PK\x03\x04" + b"\0" * 99),
    ],
)
def test_a_type_that_cannot_be_read(http: httpx.Client, name: str, content: bytes) -> None:
    assert error_of(post_file(http, name, content), 415)["code"] == "unsupported_type"


def test_an_upload_over_the_limit_is_refused(http: httpx.Client) -> None:
    assert error_of(post_file(http, "a.txt", b"x" * 3 * 2**20), 413)["code"] == "upload_too_large"


def test_an_upload_over_the_limit_is_refused_while_it_streams(http: httpx.Client) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        for _ in range(200):
            sent += 2**20
            yield b"x" * 2**20

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    with contextlib.suppress(httpx.WriteError):  # the service may close the connection while we send: refused as well
        error_of(http.post("/documents", content=body(), headers=headers), 413)
    assert sent < 100 * 2**20


def test_one_bad_file_of_two_leaves_nothing(http: httpx.Client) -> None:
    before = http.get("/documents").json()["documents"]
    files = [("file", ("good.txt", b"good text")), ("file", ("bad.exe", b"MZ"))]
    error_of(http.post("/documents", files=files), 415)
    assert http.get("/documents").json()["documents"] == before


def test_zip_bomb(http: httpx.Client, upload: Upload) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"<w>" + b" " * 400 * 2**20)
    document = upload(http, "bomb.docx", packed.getvalue())
    assert document["status"] == "failed"
    assert "unpacks" in document["error"]


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd.txt",
        "a\x00b.txt",
        "😀 notes.txt",
        "\u202etxt.exe.txt",
        "..\\..\\c.txt",
        "مرحبا.txt",
        "x" * 300 + ".txt",
    ],
)
def test_file_names_are_only_names(http: httpx.Client, upload: Upload, name: str) -> None:
    document = upload(http, name, b"Some text about file names.", "names")
    assert document["status"] == "ready"
    shown = document["filename"]
    assert "/" not in shown
    assert "\\" not in shown
    assert "\x00" not in shown
    assert "\u202e" not in shown
    assert shown.endswith(".txt")


def test_invalid_utf8(http: httpx.Client, upload: Upload) -> None:
    document = upload(http, "latin.txt", "Die Brücke über den Fluß wurde 1931 gebaut.".encode("latin-1"), "latin")
    assert document["status"] == "ready"
    assert document["warnings"]


def test_a_missing_document_and_a_missing_session(http: httpx.Client) -> None:
    assert error_of(http.get("/documents/doc_nothing"), 404)["code"] == "document_not_found"
    assert error_of(http.delete("/documents/doc_nothing"), 404)["code"] == "document_not_found"
    assert error_of(http.get("/sessions/ses_nothing"), 404)["code"] == "session_not_found"
    assert (
        error_of(http.post("/chat", json={"message": "hi", "session_id": "ses_nothing"}), 404)["param"] == "session_id"
    )


def test_paths_and_methods_that_do_not_exist(http: httpx.Client) -> None:
    assert error_of(http.get("/nothing"), 404)["code"] == "not_found"
    assert error_of(http.put("/ask"), 405)["code"] == "method_not_allowed"


def test_without_a_key_no_body_is_read(http: httpx.Client) -> None:
    host, port = http.base_url.host, http.base_url.port
    with socket.create_connection((host, port), timeout=20) as connection:
        head = f"POST /documents HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 1000)  # and no more
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_no_key_and_a_wrong_key(http: httpx.Client) -> None:
    for headers in (
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer kéy".encode("latin-1")},
    ):
        for path in ("/documents", "/sessions"):
            assert error_of(http.get(path, headers=headers), 401)["code"] == "invalid_api_key"
