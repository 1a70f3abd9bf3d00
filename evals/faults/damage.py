"""What can be wrong with a stored cache. Each function changes one session's keys; `rng` draws which and how."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from evals.faults.forging import flipped, forged, reframed
from evals.faults.stored import StoredSession


@dataclass(frozen=True)
class Copies:
    """Dumped keys: of another tenant's session about something else, and of this session a turn earlier."""

    other: dict[str, bytes]
    older: dict[str, bytes]


Damage = Callable[[StoredSession, random.Random, Copies], None]


def flip_a_bit(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """In a chunk, or in a field of the head."""
    if rng.random() < 0.8:
        key = rng.choice(stored.chunks())
        stored.put(key, flipped(stored.get(key), rng))
        return
    name = rng.choice(["generation", "fingerprint", "bytes", "manifest", "digest"])
    value: bytes = stored.client.hget(f"{stored.prefix}:head", name)  # type: ignore[assignment]
    stored.client.hset(f"{stored.prefix}:head", name, flipped(value, rng))


def cut(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """A chunk ends early, or goes on."""
    key = rng.choice(stored.chunks())
    value = stored.get(key)
    stored.put(key, value[: rng.randrange(len(value))] if rng.random() < 0.8 else value + b"\0")


def lose(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """A chunk, the head, or the list of chunks."""
    stored.client.delete(rng.choice([*stored.chunks(), f"{stored.prefix}:head", f"{stored.prefix}:chunks"]))


def swap(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """Two chunks, as they are or in frames that name their new places; or two segments in the head."""
    head, keys = stored.head(), stored.chunks()
    if len(head.segments) > 1 and rng.random() < 0.3:
        stored.put_head(replace(head, segments=head.segments[::-1]))
        return
    one, two = rng.sample(keys, 2) if len(keys) > 1 else (keys[0], keys[0])
    first, second = stored.get(one), stored.get(two)
    if rng.random() < 0.5:
        first, second = reframed(two, first), reframed(one, second)
    stored.put(one, second)
    stored.put(two, first)


def take_another_tenants(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """Of another tenant's session head and chunks; or the chunks, as they are; or one, in a frame of this session."""
    way = rng.choice(["all", "chunks", "one"])
    if way == "all":
        stored.paste({name: dump for name, dump in copies.other.items() if name != ":chunks"})
        return
    chunks = [name for name in sorted(copies.other) if ":seg:" in name]
    for key, name in list(zip(stored.chunks(), chunks, strict=False))[: 1 if way == "one" else None]:
        stored.client.restore(f"{stored.prefix}:other", 60_000, copies.other[name], replace=True)
        value = stored.get(f"{stored.prefix}:other")
        stored.put(key, reframed(key, value) if way == "one" else value)
        stored.client.delete(f"{stored.prefix}:other")


def take_another_models(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """The head says so, or the chunks do."""
    if rng.random() < 0.5:
        stored.put_head(replace(stored.head(), fingerprint=f"{rng.getrandbits(256):064x}"))
        return
    for key in stored.chunks():
        stored.put(key, forged(key, stored.get(key), {"mark": rng.randbytes(16)}))


def go_back(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """The head of a turn earlier; or an earlier chunk under a later one's name."""
    if rng.random() < 0.6:
        stored.paste({":head": copies.older[":head"]})
        return
    keys = stored.chunks()
    stored.put(keys[-1], rng.choice([stored.get(keys[0]), reframed(keys[-1], stored.get(keys[0]))]))


def forge(stored: StoredSession, rng: random.Random, copies: Copies) -> None:
    """A header says something else, under digests that are right for what it says."""
    if rng.random() < 0.3:
        head = stored.head()
        tokens = rng.choice([1, head.tokens - 1, head.tokens + 1, 2**40])
        stored.put_head(rng.choice([replace(head, tokens=tokens), replace(head, segments=head.segments[:1] * 2)]))
        return
    key = rng.choice(stored.chunks())
    ways: list[tuple[str, int | bytes]] = [
        ("index", rng.choice([1, 2**31])),
        ("count", rng.choice([0, 1, 2**32 - 1])),
        ("total", rng.choice([0, 2**62, rng.getrandbits(32)])),
        ("size", rng.choice([0, 2**62, rng.getrandbits(20)])),
        ("planes", rng.choice([1, 2, 4, 255])),
        ("version", rng.choice([0, 3, 2**16 - 1])),
        ("body", rng.randbytes(16)),
        ("digest", rng.randbytes(16)),
    ]
    stored.put(key, forged(key, stored.get(key), dict([rng.choice(ways)])))


DAMAGES: dict[str, Damage] = {
    "bit flip": flip_a_bit,
    "truncated chunk": cut,
    "missing chunk": lose,
    "swapped chunks": swap,
    "another tenant's chunk": take_another_tenants,
    "another model's": take_another_models,
    "older generation": go_back,
    "forged header": forge,
}
