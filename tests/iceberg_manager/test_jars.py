"""The Java libraries that a lake needs follow from its settings; resolved ones are found again."""

from pathlib import Path

import pytest

from iceberg_manager import jars
from iceberg_manager.session import jar_conf
from iceberg_manager.settings import CatalogSettings, LakeSettings, S3Settings

POSTGRES = CatalogSettings(type="postgres", uri="postgresql://h/d")
REST = CatalogSettings(type="rest", uri="http://h")


@pytest.mark.parametrize(
    ("lake", "expected"),
    [
        (LakeSettings(), ["iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc"]),
        (LakeSettings(catalog=POSTGRES), ["iceberg-spark-runtime-4.1_2.13", "postgresql"]),
        (LakeSettings(catalog=REST), ["iceberg-spark-runtime-4.1_2.13"]),
        (LakeSettings(warehouse="s3://b"), ["iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc", "iceberg-aws-bundle"]),
        (
            LakeSettings(landing="s3://b", s3=S3Settings()),
            ["iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc", "iceberg-aws-bundle"],
        ),
    ],
)
def test_a_lake_needs_just_its_own_libraries(lake: LakeSettings, expected: list[str]):
    assert [coordinate.split(":")[1] for coordinate in jars.coordinates(lake)] == expected


def test_libraries_are_resolved_by_name_until_all_of_them_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jars, "CACHE", tmp_path)
    lake = LakeSettings()
    wanted = jars.coordinates(lake)
    assert jar_conf(lake) == {"spark.jars.packages": ",".join(wanted)}
    names = [tmp_path / "{}_{}-{}.jar".format(*coordinate.split(":")) for coordinate in wanted]
    names[0].touch()
    assert jars.cached(wanted) is None
    names[1].touch()
    assert jars.cached(wanted) == names
    assert jar_conf(lake) == {"spark.driver.extraClassPath": f"{names[0]}:{names[1]}"}
    assert jar_conf(lake, local=False) == {"spark.jars": f"{names[0]},{names[1]}"}
