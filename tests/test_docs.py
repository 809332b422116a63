"""What the documents promise exists: commands, targets, links, and settings as they are."""

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from iceberg_manager.cli import app
from iceberg_manager.ingest_settings import IngestSettings
from iceberg_manager.settings import CatalogSettings, LakeSettings, S3Settings, SparkSettings, TablesSettings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_that_is_named_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`|\$ )make ([a-z-]+)", document.read_text(), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
        assert (document.parent / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_iceberg_manager_command_that_is_named_exists(document: Path) -> None:
    commands = re.findall(r"^ *(?:\$ )?iceberg-manager ((?:[a-z-]+ ?){1,2})", document.read_text(), re.MULTILINE)
    for words in {tuple(words.split()) for words in commands}:
        shown = CliRunner().invoke(app, [words[0], "--help"])
        assert shown.exit_code == 0, words


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    sections = (
        ("catalog.", CatalogSettings),
        ("s3.", S3Settings),
        ("spark.", SparkSettings),
        ("tables.", TablesSettings),
    )
    for prefix, section in sections:
        assert all(f"`{prefix}{key}`" in text for key in section.model_fields)
    for part, field in IngestSettings.model_fields.items():
        assert all(f"`ingest.{part}.{key}`" in text for key in type(field.default).model_fields), part
    assert all(
        f"`{key}" in text for key in LakeSettings.model_fields if key not in ("catalog", "s3", "spark", "tables")
    )


def test_make_help_lists_the_targets_of_the_readme() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"make {target} " in shown for target in ("run", "test", "dev", "check"))
