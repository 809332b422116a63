"""The Java libraries that Spark needs for Iceberg, by coordinates, and where Spark's own resolver keeps them.

The first Spark that starts resolves them by name; later ones find the files and start faster.
"""

from pathlib import Path

from iceberg_manager.settings import LakeSettings

ICEBERG = "1.12.0"
RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"
AWS = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}"
DRIVERS = {"sqlite": "org.xerial:sqlite-jdbc:3.50.3.0", "postgres": "org.postgresql:postgresql:42.7.8"}
CACHE = Path("~/.ivy2.5.2/jars")


def coordinates(settings: LakeSettings) -> list[str]:
    """What this lake needs, in a fixed order."""
    driver = DRIVERS.get(settings.catalog.type)
    return [RUNTIME, *([driver] if driver else []), *([AWS] if settings.s3 or settings.on_s3 else [])]


def cached(wanted: list[str]) -> list[Path] | None:
    """The files behind the coordinates, or None while one of them has not been resolved yet."""
    files = [CACHE.expanduser() / "{}_{}-{}.jar".format(*coordinate.split(":")) for coordinate in wanted]
    return files if all(file.is_file() for file in files) else None
