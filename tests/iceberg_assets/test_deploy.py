"""What `deploy/` ships holds together: files that exist, secrets from the environment, and one door to the UI."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from iceberg_manager.settings import load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRETS = {"LAKE_CATALOG_URI": "postgresql://u:p@h/d", "LAKE_S3_ENDPOINT": "http://s", "LAKE_S3_KEY": "k"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def test_its_lake_is_a_valid_one_with_everything_secret_from_the_environment() -> None:
    lake = load_settings(DEPLOY / "lake.yaml", SECRETS | {"LAKE_S3_SECRET": "s"})
    assert (lake.catalog.type, lake.warehouse_location) == ("postgres", "s3://lake/warehouse")


def test_only_the_proxy_is_reachable_and_only_on_this_machine(services: dict[str, Any]) -> None:
    assert {name: one["ports"] for name, one in services.items() if "ports" in one} == {
        "proxy": ["127.0.0.1:8080:8080"]
    }
    assert "basic_auth" in (DEPLOY / "Caddyfile").read_text()


def test_no_secret_has_a_value_or_a_default(services: dict[str, Any]) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert all(reference.endswith(":?") for reference in re.findall(r"\$\{([^}]*)\}", text))
    for one in services.values():
        for key, value in one.get("environment", {}).items():
            assert "${" in value or not re.search("PASSWORD|SECRET|KEY", key), key


def test_what_it_mounts_copies_and_waits_for_exists(services: dict[str, Any]) -> None:
    for one in services.values():
        for volume in one.get("volumes", []):
            assert not volume.startswith("./") or (DEPLOY / volume.split(":")[0]).is_file()
        for name, wish in one.get("depends_on", {}).items():
            assert wish["condition"] != "service_healthy" or "healthcheck" in services[name]
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for path in " ".join(copied).split():
        assert (DEPLOY.parent / path).exists(), path
