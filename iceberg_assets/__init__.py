"""The lakehouse as Dagster assets: the ``@iceberg_table`` decorator, the tables, and the definitions that join them."""

import warnings

import dagster as dg

# Single-run backfills are the reason that a range of days is one commit; Dagster calls the parameter beta.
warnings.filterwarnings("ignore", "Parameter `backfill_policy`", dg.BetaWarning)
