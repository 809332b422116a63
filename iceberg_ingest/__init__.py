"""The ingest service's package: Arrow Flight to a write-ahead log to Iceberg, in a process of its own. No Dagster.

So far it holds the write-ahead log and its tools; the service, its writer and its reader stand on top of it.
"""
