"""Thin Dagster resources around the libraries: the lake, its Spark and its DuckDB."""

from resources.duckdb import LakeDuckDBResource
from resources.lake import LakeResource
from resources.spark import SparkResource

__all__ = ["LakeDuckDBResource", "LakeResource", "SparkResource"]
