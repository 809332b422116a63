"""Spark gets a Java that is new enough, or the user a sentence on how to get one."""

from pathlib import Path

import pytest

from iceberg_manager import java
from iceberg_manager.errors import SetupError


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere but under ``tmp_path/usual``."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_USUAL", (f"{tmp_path}/usual/*",))


def _install(home: Path, release: str | None, program: str = "#!/bin/sh\n") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(program)
    (home / "bin" / "java").chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def test_no_java_is_a_sentence_that_says_what_to_do():
    with pytest.raises(
        SetupError, match=r"needs Java 17 or newer and none was found: run `make setup`, or install one"
    ):
        java.find_java()


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = _install(tmp_path / "old", 'IMPLEMENTOR="x"\nJAVA_VERSION="11.0.2"\n')
    _install(tmp_path / "usual" / "eight", 'JAVA_VERSION="1.8.0_292"\n')
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(SetupError) as error:
        java.find_java()
    assert f"{old} is Java 11" in str(error.value)
    assert "eight is Java 8" in str(error.value)


def test_an_old_java_home_does_not_hide_a_good_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(_install(tmp_path / "old", 'JAVA_VERSION="11"\n')))
    good = _install(tmp_path / "good", 'JAVA_VERSION="17.0.1"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(good / "bin" / "java")
    assert java.find_java() == good


@pytest.mark.parametrize(
    ("release", "program"),
    [
        ('GRAALVM_VERSION="11.1"\nIMPLEMENTOR_VERSION="9"\nJAVA_RUNTIME_VERSION="8"\nJAVA_VERSION="21.0.1"\n', ""),
        (None, "#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n"),
    ],
)
def test_the_version_is_read_or_asked(tmp_path: Path, release: str | None, program: str):
    home = _install(tmp_path / "usual" / "jdk", release, program)
    assert java.find_java() == home


@pytest.mark.parametrize("program", ["", "not a program", "#!/nowhere/sh\n"])
def test_a_java_that_does_not_run_is_none(tmp_path: Path, program: str):
    _install(tmp_path / "usual" / "jdk", None, program)
    with pytest.raises(SetupError, match="none was found"):
        java.find_java()
