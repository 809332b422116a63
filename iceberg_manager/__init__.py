"""The library under Iceberg Assets: settings, specs, commits, history, checks and queries. No Dagster."""
