"""Finds a Java that Spark can run on, 17 or newer: JAVA_HOME, then PATH, then the usual folders."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from iceberg_manager.errors import SetupError

OLDEST = 17
_USUAL = ("/usr/lib/jvm/*", "~/.jdk/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")


def find_java() -> Path:
    """The home folder of the first Java that is new enough."""
    too_old: list[str] = []
    for home in _candidates():
        version = _version(home)
        if version >= OLDEST:
            return home
        if version:
            too_old.append(f"{home} is Java {version}")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise SetupError(
        f"Spark needs Java {OLDEST} or newer and none was found{found}: run `make setup`, or install one "
        "(on Debian: apt-get install openjdk-17-jre-headless) and set JAVA_HOME to it."
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    for pattern in _USUAL:
        folder = Path(pattern).expanduser()
        anchor = Path(folder.anchor)
        yield from sorted(anchor.glob(str(folder.relative_to(anchor))), reverse=True)


def _version(home: Path) -> int:
    """The major version, or 0 where there is no working Java."""
    java = home / "bin" / "java"
    if not java.is_file():
        return 0
    try:
        said = (home / "release").read_text()
    except (OSError, UnicodeDecodeError):
        said = _says(java)
    match = re.search(r'(?:\bJAVA_VERSION=| version )"(?:1\.)?(\d+)', said)
    return int(match[1]) if match else 0


def _says(java: Path) -> str:
    """What ``java -version`` prints, which is nothing for a file that does not run."""
    try:
        return subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""
