"""Commits the log's backlog once and ends: for deployments without a writer process. Same protocol, same lock (ADR 10)."""

from iceberg_ingest.ingest_commits import Ingested
from iceberg_ingest.writer import Writer
from iceberg_manager.settings import LakeSettings


def drain(settings: LakeSettings) -> list[Ingested]:
    """What was committed; an UnavailableError if a writer is at work."""
    done: list[Ingested] = []
    with Writer(settings) as writer:
        writer.on_commit = done.append
        writer.drain()
    return done
