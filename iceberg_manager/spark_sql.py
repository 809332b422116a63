"""The same SQL on the lake's Spark, under the same rule: one statement that only reads."""

from pyspark.errors import PySparkException

from iceberg_manager import sql
from iceberg_manager.errors import InputError, first_line
from iceberg_manager.names import DEFAULT_NAMESPACE
from iceberg_manager.result import Result
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings


def run(settings: LakeSettings, query: str) -> Result:
    """The rows of one query; a bare table name means the default namespace."""
    sql.check(query)
    with LakeSession(settings) as session:
        spark = session.spark
        catalog = settings.catalog.name
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.`{DEFAULT_NAMESPACE}`").collect()
        spark.sql(f"USE `{catalog}`.`{DEFAULT_NAMESPACE}`").collect()
        try:
            return Result(spark.sql(query).toArrow())
        except PySparkException as error:
            raise InputError(f"Spark refused the query: {first_line(error)}") from error
