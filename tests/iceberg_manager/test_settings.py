"""One frozen object from a file and the environment; every mistake in them is one sentence, and no secret is in it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from iceberg_manager.errors import SettingsError
from iceberg_manager.settings import CatalogSettings, LakeSettings, S3Settings, SparkSettings, load_settings

SECRET = "hunter2"


def _load(folder: Path, text: str, **environment: str) -> LakeSettings:
    file = folder / "lake.yaml"
    file.write_text(text)
    return load_settings(file, environment)


def _mistake(folder: Path, text: str, **environment: str) -> str:
    with pytest.raises(SettingsError) as error:
        _load(folder, text, **environment)
    said = str(error.value)
    assert "\n" not in said
    assert said.endswith((".", "?"))
    assert "pydantic" not in said
    return said


def test_an_empty_file_is_a_lake_in_data_beside_it(tmp_path: Path):
    lake = _load(tmp_path, "")
    assert lake.root == tmp_path / "data"
    assert lake.warehouse_location == str(tmp_path / "data" / "warehouse")
    assert lake.landing_location == str(tmp_path / "data" / "landing")
    assert lake.catalog_file == tmp_path / "data" / "catalog.db"
    assert lake.spark_server_dir == tmp_path / "data" / "spark"
    assert not lake.on_s3


def test_relative_paths_count_from_the_file_they_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")
    lake = _load(tmp_path, "root: here\nwarehouse: ../there\nlanding: in/\nspark: {server_dir: warm}\n")
    assert lake.root == tmp_path / "here"
    assert lake.warehouse_location == str(tmp_path.parent / "there")
    assert lake.landing_location == str(tmp_path / "in")
    assert lake.spark_server_dir == tmp_path / "warm"


def test_the_file_given_wins_over_the_variable_over_the_folder_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    below = tmp_path / "project" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert load_settings(environment={}).root == below / "data"
    (tmp_path / "project" / "lake.yaml").write_text("root: found")
    assert load_settings(environment={}).root == tmp_path / "project" / "found"
    (tmp_path / "other.yaml").write_text("root: named")
    variable = {"ICEBERG_LAKE": str(tmp_path / "other.yaml")}
    assert load_settings(environment=variable).root == tmp_path / "named"
    assert load_settings(tmp_path / "given", variable).root == tmp_path / "given"


def test_a_folder_is_a_lake_unless_it_holds_a_file(tmp_path: Path):
    assert load_settings(tmp_path, {}).root == tmp_path
    (tmp_path / "lake.yaml").write_text("root: inner")
    assert load_settings(tmp_path, {}).root == tmp_path / "inner"


@pytest.mark.parametrize(
    ("variable", "value", "path", "expected"),
    [
        ("SPARK__MODE", "embedded", "spark.mode", "embedded"),
        ("SPARK__CORES", "*", "spark.cores", "*"),
        ("SPARK__CORES", "3", "spark.cores", 3),
        ("SPARK__UI", "true", "spark.ui", True),
        ("SPARK__IDLE_MINUTES", "0.5", "spark.idle_minutes", 0.5),
        ("WAREHOUSE", "s3://b/w", "warehouse", "s3://b/w"),
    ],
)
def test_a_variable_overrides_the_file(tmp_path: Path, variable: str, value: str, path: str, expected: Any):
    text = "spark:\n  mode: shared\n  memory: 3g\ncatalog:\n"
    lake: Any = _load(tmp_path, text, **{f"ICEBERG_LAKE__{variable}": value})
    assert lake.spark.memory == "3g"
    for part in path.split("."):
        lake = getattr(lake, part)
    assert lake == expected


def test_a_secret_of_digits_or_odd_signs_survives_the_environment(tmp_path: Path):
    text = "catalog: {type: rest, uri: 'http://h', token: '${TOKEN}'}"
    for secret in ("12345", "a: b #c", "*", "[", "null", "${x}"):
        from_file = _load(tmp_path, text, TOKEN=secret)
        assert from_file.catalog.token
        assert from_file.catalog.token.get_secret_value() == secret
    overridden = _load(tmp_path, "catalog: {type: rest, uri: 'http://h'}", ICEBERG_LAKE__CATALOG__TOKEN="12345")
    assert overridden.catalog.token
    assert overridden.catalog.token.get_secret_value() == "12345"


def test_sections_whose_lines_are_all_commented_out_are_absent(tmp_path: Path):
    assert _load(tmp_path, "catalog:\n  # type: rest\nspark:\ns3:\nwarehouse:\n") == _load(tmp_path, "")


def test_numbers_and_booleans_in_sparks_conf_are_spelled_as_spark_does(tmp_path: Path):
    conf = _load(tmp_path, "spark: {conf: {a: 4, b: true, c: text, d: 0.5}}").spark.conf
    assert {key: value.get_secret_value() for key, value in conf.items()} == {
        "a": "4", "b": "true", "c": "text", "d": "0.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("warehose: x", "unknown key 'warehose'. Did you mean 'warehouse'?"),
        ("catalog: {tpye: rest}", "unknown key 'catalog.tpye'. Did you mean 'type'?"),
        ("s3: {regio: x}", "unknown key 's3.regio'. Did you mean 'region'?"),
        ("spark: {zzz: 1}", "unknown key 'spark.zzz'. Known keys:"),
        ("1: x", "unknown key '1'"),
        ("catalog: rest", "catalog must hold keys of its own"),
        ("spark: {conf: 5}", "spark.conf must hold keys of its own"),
        ("spark: {conf: {a: [1]}}", "spark.conf.a: Input should be a valid string"),
        ("spark: {mode: fast}", "spark.mode: Input should be 'shared', 'embedded' or 'remote'"),
        ("spark: {cores: many}", "spark.cores: Input should be a valid integer"),
        ("spark: {cores: 0}", "spark.cores: Input should be greater than or equal to 1"),
        ("spark: {memory: lots}", "spark.memory: String should match"),
        ("spark: {idle_minutes: 0}", "spark.idle_minutes: Input should be greater than 0"),
        ("root: [a, b]", "root: Input"),
        ("warehouse: 5", "warehouse: Input should be a valid string"),
        ("root: s3://bucket/lake", "must be a local folder"),
        ("root: what?", "must be a local folder without '?'"),
        ("warehouse: file:///x", "'file:///x' must be a local path or an address such as s3://"),
        ("warehouse: 's3://'", "'s3://' must be a local path or an address such as s3://"),
        ("- a\n- b", "must hold keys such as"),
        ("just text", "must hold keys such as"),
        ("spark: {mode: remote}", "mode remote and the address `remote`"),
        ("spark: {remote: 'sc://h'}", "mode remote and the address `remote`"),
        ("s3: {region: x}", "s3 is set, but neither warehouse nor landing"),
        ("warehouse: s3://b\ns3: {access_key_id: x}", "access_key_id and secret_access_key go together"),
        ("catalog: {uri: 'postgresql://h/d'}", "type sqlite takes no uri"),
        ("catalog: {type: postgres}", "type postgres needs a uri that starts with postgresql://"),
        ("catalog: {type: rest, uri: 'postgresql://h'}", "type rest needs a uri that starts with http://"),
        ("catalog: {type: postgres, uri: 'postgresql://h/d', token: x}", "belong to type rest"),
        ("catalog: {name: My-Lake}", "catalog.name: String should match"),
        ("catalog: {type: rest, uri: '${NOWHERE}'}", "refers to ${NOWHERE}, but no such environment variable is set"),
        ("a: b: c", "is not valid YAML: mapping values are not allowed here in line 1, column 5"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, said: str):
    assert said in _mistake(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("SPARK__MOED", "The variable ICEBERG_LAKE__SPARK__MOED: unknown key 'spark.moed'. Did you mean 'mode'?"),
        ("SPRAK__MODE", "unknown key 'sprak'. Did you mean 'spark'?"),
        ("ROOT__X", "'root' holds a single value"),
        ("SPARK__CORES", "spark.cores"),
    ],
)
def test_a_mistake_in_a_variable_is_one_sentence(tmp_path: Path, variable: str, said: str):
    assert said in _mistake(tmp_path, "root: x", **{f"ICEBERG_LAKE__{variable}": "many"})


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path):
    for place, said in ((tmp_path / "no.yaml", "no lake file at"), (tmp_path / "data.csv", "neither a lake's folder")):
        (tmp_path / "data.csv").touch()
        with pytest.raises(SettingsError, match=said):
            load_settings(place, {})
    (tmp_path / "lake.yaml").write_bytes(b"root: \xff\xfe")
    with pytest.raises(SettingsError, match="not a text file"):
        load_settings(tmp_path, {})


def test_nothing_can_be_changed_afterwards():
    lake = LakeSettings()
    with pytest.raises(ValidationError, match="frozen"):
        lake.root = Path("elsewhere")
    with pytest.raises(ValidationError, match="frozen"):
        lake.spark.mode = "embedded"


def test_secrets_never_print(tmp_path: Path):
    lake = LakeSettings(
        warehouse="s3://b/w",
        catalog=CatalogSettings(type="rest", uri=f"http://me:{SECRET}@h", token=SECRET, credential=f"a:{SECRET}"),
        s3=S3Settings(access_key_id=SECRET, secret_access_key=SECRET),
        spark=SparkSettings(mode="remote", remote=f"sc://h/;token={SECRET}", conf={"fs.secret": SECRET}),
    )
    for shown in (repr(lake), str(lake), str(lake.model_dump()), lake.model_dump_json(), f"{lake.catalog!r}"):
        assert SECRET not in shown


@pytest.mark.parametrize(
    "text",
    [
        f"catalog: {{uri: 'postgresql://me:{SECRET}@h/d'}}",
        f"catalog: {{type: postgres, uri: 'mysql://me:{SECRET}@h/d'}}",
        f"catalog: {{type: rest, uri: 'http://h', token: [{SECRET}]}}",
        f"catalog:\n  token: {SECRET}\n bad: indent",
        f"catalog: {{token: '{SECRET}",
        f"warehouse: s3://b\ns3: {{secret_access_key: {SECRET}}}",
        f"spark: {{remote: 'sc://h/;token={SECRET}'}}",
    ],
)
def test_secrets_are_in_no_error(tmp_path: Path, text: str):
    assert SECRET not in _mistake(tmp_path, text)


def test_secrets_are_in_no_error_of_settings_made_in_code():
    with pytest.raises(ValidationError) as error:
        LakeSettings.model_validate({"catalog": {"uri": f"postgresql://me:{SECRET}@h/d", "tokn": SECRET}})
    assert SECRET not in str(error.value)
