"""Fixtures that several parts share."""

import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import torch
from sqlalchemy import Engine
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from app.engine.pull import pull
from app.sessions import SessionRecords, TurnRecord, open_kv_client
from app.settings import Settings
from retriever import Document, Embedder, Retriever
from retriever.database import open_database
from tests.postgres import new_database, postgres_server

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the processors, and so do the services that they start
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of the two default models, fetched if they are missing."""
    folder = Settings().models_dir.resolve()
    pull(folder, lambda line: None)
    return folder


@pytest.fixture(scope="session")
def embedded_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    """A client of an embedded server that all tests share: keep to tenants of your own, and leave it running."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("kv"), kv_memory_mb=256, kv_timeout_ms=2000)
    with open_kv_client(settings) as client:
        yield client


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server that all tests share."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database of the test's own, of either kind."""
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path / 'snaprag.db'}")
    else:
        engine = open_database(new_database(request.getfixturevalue("postgres")))
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def embedder(models_dir: Path) -> Embedder:
    """The default embedder."""
    return Embedder(str(models_dir / "all-minilm-l6-v2"), "cpu")


@pytest.fixture
def retriever(database: Engine, embedder: Embedder, tmp_path: Path) -> Iterator[Retriever]:
    """A running retriever on `database`."""
    retriever = Retriever(database, embedder, tmp_path)
    retriever.start()
    yield retriever
    retriever.stop()


@pytest.fixture
def ingest(retriever: Retriever) -> Callable[..., Document]:
    """Uploads a file and waits until it is ready or has failed."""

    def run(name: str, content: str | bytes, *, tenant: str = "t", collection: str = "default") -> Document:
        data = content.encode() if isinstance(content, str) else content
        document = retriever.add(tenant, collection, name, io.BytesIO(data))
        deadline = time.monotonic() + 60
        while document.status in ("queued", "processing"):
            assert time.monotonic() < deadline, document
            time.sleep(0.01)
            document = retriever.document(tenant, document.document_id)
        return document

    return run


@pytest.fixture
def records(database: Engine) -> SessionRecords:
    """Sessions and turns in `database`."""
    return SessionRecords(database)


@pytest.fixture
def make_turn() -> Callable[..., TurnRecord]:
    """Makes the record of turn `number`, which holds one passage of `document_id` and cites it."""

    def make(
        number: int, token_ids: tuple[int, ...] = (1, 2), *, starts_over: bool = False, document_id: str = "d1"
    ) -> TurnRecord:
        source = {"passage_id": f"{document_id}-0", "document_id": document_id, "title": "T", "page": 1}
        return TurnRecord(
            number=number,
            answer_id=f"ans_{number}",
            message=f"question {number}",
            answer=f"answer {number} 答え",
            answerable=True,
            finish_reason="stop",
            citations=[{"start": 0, "end": 6, "text": "answer", "sources": [{**source, "cited_text": "some"}]}],
            passages=[{**source, "start": 0, "end": 9, "text": "some text"}],
            usage={"prompt_tokens": 10},
            timings={"total_ms": 1.5},
            model="m",
            compression={"policy": "snapkv"},
            notices=["a notice"],
            token_ids=list(token_ids),
            starts_over=starts_over,
        )

    return make


@pytest.fixture
def tiny_model() -> Iterator[Callable[..., PreTrainedModel]]:
    """Makes a random decoder of a model type, the same one every time, with weights large enough to attend sharply.

    On one thread: for such sizes, more of them only wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def make(model_type: str = "llama", **changes: object) -> PreTrainedModel:
        sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 2}
        limits = {"max_position_embeddings": 256, "initializer_range": 0.3}
        config = CONFIG_MAPPING[model_type](**{**sizes, **heads, **limits, **changes})
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()

    yield make
    torch.set_num_threads(threads)
