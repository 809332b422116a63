"""The ingest service's package: Arrow Flight to a write-ahead log to Iceberg, in processes of its own. No Dagster."""
