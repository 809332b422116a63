"""Six small tables by ``dagster asset materialize``: ours, cold and warm, against the naive way. Whole processes."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from iceberg_manager import spark_server

WARM_RUNS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        (home / "lake.yaml").write_text("root: lake\n")
        (home / "lake").mkdir()
        server = home / "lake" / "spark"
        try:
            naive = _materialize("benchmarks.chain_naive", home)
            cold = _materialize("benchmarks.chain_ours", home)
            warm = [_materialize("benchmarks.chain_ours", home) for _ in range(WARM_RUNS)]
        finally:
            spark_server.stop(server, force=True)
    best = statistics.median(warm)
    print("| six tables | seconds | naive is slower by |\n|---|---:|---:|")
    print(f"| naive: default executor, a Spark session per step | {naive:.1f} | |")
    print(f"| ours, cold: the shared server is started first | {cold:.1f} | {naive / cold:.1f}x (goal 4x) |")
    print(f"| ours, warm: median of {WARM_RUNS} | {best:.1f} | {naive / best:.1f}x (goal 8x) |")
    print(f"\nwarm runs: {', '.join(f'{seconds:.1f}' for seconds in warm)}")


def _materialize(module: str, home: Path) -> float:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment = inherited | {"DAGSTER_HOME": str(home), "ICEBERG_LAKE": str(home / "lake.yaml")}
    command = [sys.executable, "-m", "dagster", "asset", "materialize", "-m", module, "--select", "*"]
    started = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr[-3000:]}")
    return time.monotonic() - started


if __name__ == "__main__":
    main()
