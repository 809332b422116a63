"""The ingest service's package: Arrow Flight to a write-ahead log to Iceberg, in a process of its own. No Dagster.

Nothing is here yet; the layer is part of the import contract so that what comes lands in its place.
"""
