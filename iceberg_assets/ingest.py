"""Ingest in Dagster: topics' tables as assets, and a run that commits the backlog when no writer process does."""

import dagster as dg

from resources import LakeResource


def topic_asset(tenant: str, topic: str, description: str = "") -> dg.AssetSpec:
    """A topic's table as an asset that others may depend on; the sensor reports its commits."""
    from iceberg_ingest.topic_tables import topic_name

    key = list(topic_name(tenant, topic).identifier)
    return dg.AssetSpec(key, description=description or None, group_name=tenant, kinds={"iceberg"})


@dg.op(description="Commits what the write-ahead log holds. It is refused while a writer is at work.")
def drain_log(context: dg.OpExecutionContext, lake: LakeResource) -> None:
    from iceberg_ingest.drain import drain  # heavy, and needed by runs only

    for done in drain(lake.settings):
        said = {"ingest/rows": done.rows, "ingest/bytes": done.bytes, "ingest/committed_seq": done.position.seq}
        context.log_event(dg.AssetMaterialization(list(done.table.identifier), metadata=said))


@dg.job(name="ingest__drain", executor_def=dg.in_process_executor, description="The log's backlog into its tables.")
def ingest_drain() -> None:
    drain_log()
