"""Structured logs and Prometheus metrics. Logs are JSON lines on standard error; each carries the id of its request."""

import logging
import sys
from dataclasses import asdict

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.answer import Answer

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def configure_logs(level: str = "INFO") -> None:
    """Route structlog to standard error as JSON lines. Called once, by the process that serves."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class Metrics:
    """The service's own metrics, in a registry of its own so that two apps in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.turns = Counter("snaprag_turns", "Turns by how they ended.", ["outcome"], registry=self.registry)
        self.stages = Histogram(
            "snaprag_stage_seconds", "Seconds of a turn's stages.", ["stage"], buckets=_SECONDS, registry=self.registry
        )
        self.tokens = Counter("snaprag_tokens", "Tokens of turns by kind.", ["kind"], registry=self.registry)
        self.waiting = Gauge("snaprag_turns_waiting", "Turns that wait for the model.", registry=self.registry)
        self.cache_loads = Gauge(
            "snaprag_session_cache_loads", "Loads of a session's cache by result.", ["result"], registry=self.registry
        )
        self.kv_bytes = Gauge(
            "snaprag_kv_bytes", "Bytes of session caches on the server, NaN if unknown.", registry=self.registry
        )
        self.kv_away = Gauge(
            "snaprag_kv_away", "1 while the server of session caches is known to be away.", registry=self.registry
        )
        self.break_even = Gauge(
            "snaprag_break_even_tokens", "Session caches of fewer tokens are computed anew.", registry=self.registry
        )
        self.requests = Counter(
            "snaprag_http_requests", "HTTP requests.", ["method", "route", "status"], registry=self.registry
        )

    def observe(self, answer: Answer) -> None:
        """Count a finished turn."""
        self.turns.labels("answered" if answer.answerable else "unanswerable").inc()
        for stage, milliseconds in asdict(answer.timings).items():
            self.stages.labels(stage.removesuffix("_ms")).observe(milliseconds / 1000)
        usage = answer.usage
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("cached").inc(usage.cached_tokens)
        self.tokens.labels("completion").inc(usage.completion_tokens)
