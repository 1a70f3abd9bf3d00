"""Everything a request needs, opened once by the application's lifespan and closed in reverse."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from app.admission import Admission
from app.break_even import BreakEven
from app.data_folder import using
from app.engine.archive import Archive
from app.engine.engine import Engine, EngineSettings
from app.engine.loading import load_model, resolve_embedder
from app.engine.memory import bound_arenas
from app.engine.policy import allocation_of, find_profile, working_policy
from app.engine.running import CacheSettings
from app.prompt import PromptBuilder
from app.sessions import Cipher, KVStore, Quotas, SessionRecords, open_kv_client
from app.settings import Settings
from app.telemetry import Metrics
from retriever import Embedder, Retriever
from retriever.database import open_database


@dataclass(frozen=True)
class Services:
    """The open resources."""

    settings: Settings
    metrics: Metrics
    retriever: Retriever
    records: SessionRecords
    store: KVStore
    engine: Engine
    prompts: PromptBuilder
    admission: Admission
    fingerprint: str
    break_even: BreakEven = field(default_factory=BreakEven)

    def refresh_metrics(self) -> None:
        """Gauges that are read rather than counted."""
        self.metrics.waiting.set(self.engine.waiting)
        for result, count in self.store.counts().items():
            self.metrics.cache_loads.labels(result).set(count)
        self.metrics.kv_away.set(self.store.is_away)
        self.metrics.break_even.set(self.break_even.length)
        held = self.store.held_bytes()
        self.metrics.kv_bytes.set(float("nan") if held is None else held)


@contextmanager
def open_services(settings: Settings, metrics: Metrics) -> Iterator[Services]:
    """Open the database, the KV store, the models and their threads. Raises ModelMissingError."""
    bound_arenas()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        alone = opened.enter_context(using(settings.data_dir))
        loaded = load_model(settings)
        embedder = Embedder(resolve_embedder(settings), loaded.model.device.type)
        database = open_database(settings.database_url or f"sqlite:///{settings.data_dir / 'snaprag.db'}")
        opened.callback(database.dispose)
        client = opened.enter_context(open_kv_client(settings))
        store = KVStore(
            client,
            settings.kv_ttl_s,
            _quotas(settings),
            cipher=_cipher(settings),
            timeout_s=settings.kv_timeout_ms / 1000,
        )
        opened.callback(store.close)
        # the embedded server locks the data directory: only then is nobody else here
        shared = settings.database_url is not None or settings.redis_url is not None
        retriever = Retriever(database, embedder, settings.data_dir, shared=shared)
        retriever.start()
        opened.callback(retriever.stop)
        records = SessionRecords(database)
        if settings.database_url is None and alone:
            records.release_all()
        allocation = allocation_of(settings, find_profile(settings, loaded.weights))
        policy = working_policy(settings, allocation)
        archive = Archive(settings.archive, settings.archive_keep, allocation)
        caches = CacheSettings(policy, settings.window, archive, settings.prefill_chunk)
        engine = Engine(loaded, _engine_settings(settings, caches))
        engine.start()
        opened.callback(engine.stop)
        yield Services(
            settings=settings,
            metrics=metrics,
            retriever=retriever,
            records=records,
            store=store,
            engine=engine,
            prompts=PromptBuilder(loaded.tokenizer, min(settings.context_tokens or 10**9, loaded.context_tokens)),
            admission=Admission(settings.queue_size, settings.tenant_turns),
            fingerprint=loaded.fingerprint(archive=repr((archive, settings.archive_format)), policy=repr(policy)),
        )


def _engine_settings(settings: Settings, caches: CacheSettings) -> EngineSettings:
    return EngineSettings(
        caches,
        turns=settings.running_turns,
        memory=settings.running_memory_mb * 2**20,
        waiting_turns=settings.queue_size,
        waiting_tokens=settings.queue_tokens,
        patience_s=settings.queue_timeout_s,
    )


def _quotas(settings: Settings) -> Quotas:
    tenant, total = (None if mb is None else mb * 2**20 for mb in (settings.kv_tenant_mb, settings.kv_total_mb))
    return Quotas(tenant, total)


def _cipher(settings: Settings) -> Cipher | None:
    return Cipher([key.get_secret_value() for key in settings.kv_key]) if settings.kv_key else None
