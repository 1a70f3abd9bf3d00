"""`snaprag ask` and `snaprag chat`: a streamed answer with its sources and what it cost."""

from typing import Any

from rich.console import Console

from app.cli.client import Client, ServiceError


def show_turn(client: Client, path: str, body: dict[str, Any], console: Console) -> dict[str, Any]:
    """Print the answer as it comes, then its citations and its cost. Returns the answer object."""
    answer: dict[str, Any] = {}
    for name, data in client.stream(path, body):
        if name == "delta":
            console.print(data["text"], end="", markup=False, highlight=False, soft_wrap=True)
        elif name == "done":
            answer = data
    console.print()
    _show_citations(answer, console)
    for notice in answer["notices"]:
        console.print(notice, style="yellow", markup=False)
    console.print(cost(answer), style="dim", highlight=False)
    return answer


def cost(answer: dict[str, Any]) -> str:
    """One line: what was reused and how long the first token took."""
    usage, timings = answer["usage"], answer["timings"]
    if usage["prompt_tokens"] == 0:
        return "nothing was found; the model was not asked"
    reused = f"reused {usage['cached_tokens']:,} of {usage['prompt_tokens']:,} tokens"
    return f"{reused}, first token after {timings['first_token_ms'] / 1000:.2f} s"


def converse(client: Client, session: str | None, collection: str | None, console: Console) -> None:
    """Read messages until /quit or the end of input."""
    if session is not None:
        console.print(client.get(f"/sessions/{session}")["title"], style="bold", markup=False)
    while True:
        try:
            message = console.input("[bold]> [/bold]").strip()
        except (EOFError, KeyboardInterrupt):
            break
        if message in ("/quit", "/exit"):
            break
        if message:
            session = _turn(client, message, session, collection, console)
    if session is not None:
        console.print(f"go on with: snaprag chat --session {session}", style="dim", highlight=False)


def _turn(client: Client, message: str, session: str | None, collection: str | None, console: Console) -> str | None:
    body = {"message": message}
    body |= {"session_id": session} if session else {}
    body |= {"collection": collection} if collection and not session else {}
    try:
        answered: str = show_turn(client, "/chat", body, console)["session_id"]
    except KeyboardInterrupt:
        console.print("\nstopped", style="yellow")
        return session
    except ServiceError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return session
    return answered


def _show_citations(answer: dict[str, Any], console: Console) -> None:
    seen = []
    for citation in answer["citations"]:
        for source in citation["sources"]:
            place = f"{source['title']}, page {source['page']}"
            if (place, source["cited_text"]) not in seen:
                seen.append((place, source["cited_text"]))
    for number, (place, cited) in enumerate(seen, 1):
        console.print(f"  [{number}] {place}: “{' '.join(cited.split())}”", style="cyan", markup=False, highlight=False)
