"""The examples run, and docs/manager.md shows what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_docs_say(example: Path, tmp_path: Path):
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    command = [sys.executable, str(example), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.search(
        rf"examples/{example.name}.*?```text\n(.*?)```", (ROOT / "docs" / "manager.md").read_text(), re.DOTALL
    )
    assert shown, f"docs/manager.md does not show examples/{example.name}"
    assert done.stdout.strip() == shown[1].strip()
