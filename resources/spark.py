"""Spark for assets, on dagster-pyspark's lazy resource: no session until one is asked for, and always a living one."""

from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from iceberg_manager.session import LakeSession
from resources.lake import LakeResource


class SparkResource(LazyPySparkResource):
    """The lake's Spark in the mode that lake.yaml names. ``spark_config`` is set on top, for this session only."""

    spark_config: dict[str, Any] = {}  # noqa: RUF012 (a pydantic field)
    lake: dg.ResourceDependency[LakeResource]
    _session: LakeSession | None = PrivateAttr(default=None)

    def _init_session(self) -> None:
        if self._session is None:
            self._session = LakeSession(self.lake.settings)
        session = self._session.spark
        if session is not self._spark_session:
            for key, value in self.spark_config.items():
                session.conf.set(key, str(value))
            self._spark_session = session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._session is not None:
            self._session.close()
            self._session = self._spark_session = None
