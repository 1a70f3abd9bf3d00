"""A process that is killed leaves a store that opens, resumes and holds nothing twice."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from retriever import Embedder, Retriever, open_database

# Ends up with a ready document, one at `moment`, a queued one, an upload that still comes and one without its row.
CHILD = """
import io, sys, threading, time
from pathlib import Path
from retriever import Embedder, Retriever, lexical, open_database, store

folder, model, moment = sys.argv[1:]
embedder = Embedder(model, "cpu")
retriever = Retriever(open_database(f"sqlite:///{folder}/snaprag.db"), embedder, Path(folder))
retriever.start()

def add(name, text):
    return retriever.add("t", "default", name, io.BytesIO(text.encode())).document_id

def stall(*_):
    print("here", flush=True)
    time.sleep(600)

class Slow(io.BytesIO):
    def read(self, size=-1):
        return super().read(size) if self.tell() < 4096 else stall()

ready = add("ready.txt", "The feed pump runs at 12 bar.")
while retriever.document("t", ready).status != "ready":
    time.sleep(0.01)
if moment == "embedding":
    embedder.embed = stall
else:
    def written(connection, numbers, texts, add=lexical.add):
        add(connection, numbers, texts)
        stall()
    lexical.add = written
add("interrupted.txt", "The valve is opened by hand.\\n\\n" + "Filler words of no use. " * 200)
add("queued.txt", "The reserve tank holds 40 litres.")
threading.Thread(target=retriever.add, args=("t", "default", "slow.txt", Slow(b"x" * 9000)), daemon=True).start()
if moment == "embedding":
    store.insert = stall
    threading.Thread(target=add, args=("rowless.txt", "text"), daemon=True).start()
time.sleep(600)
"""


@pytest.mark.parametrize(("moment", "stalls"), [("embedding", 3), ("publishing", 2)])
def test_killed_at_its_worst_moments_it_resumes(
    tmp_path: Path, models_dir: Path, embedder: Embedder, moment: str, stalls: int
) -> None:
    model = str(models_dir / "all-minilm-l6-v2")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), model, moment], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        seen = [line for line in (child.stdout.readline() for _ in range(stalls)) if line]
        child.kill()
        child.wait()
    assert len(seen) == stalls

    engine = open_database(f"sqlite:///{tmp_path / 'snaprag.db'}")
    retriever = Retriever(engine, embedder, tmp_path)
    states = {document.filename: document.status for document in retriever.documents("t")}
    assert states == {"ready.txt": "ready", "interrupted.txt": "processing", "queued.txt": "queued"}
    assert counted(engine) == (1, 1)
    retriever.start()
    try:
        while any(document.status != "ready" for document in retriever.documents("t")):
            time.sleep(0.01)
        documents = retriever.documents("t")
        assert {path.name for path in (tmp_path / "uploads").iterdir()} == {d.document_id for d in documents}
        total = sum(document.passages for document in documents)
        assert counted(engine) == (total, total)
        for query, name in (("feed pump", "ready"), ("valve by hand", "interrupted"), ("reserve tank", "queued")):
            assert retriever.search("t", "default", query, 5)[0].passage.title == f"{name}.txt"
    finally:
        retriever.stop()
        engine.dispose()


def counted(engine: Engine) -> tuple[int, int]:
    """Rows of the passages and of their words."""
    with engine.connect() as connection:
        passages = connection.execute(text("SELECT count(*) FROM passages")).scalar_one()
        return passages, connection.execute(text("SELECT count(*) FROM passages_fts")).scalar_one()
