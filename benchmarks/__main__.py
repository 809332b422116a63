"""Runs the benchmarks by name, all of them by default, and prints each as a table ready for docs/benchmarks.md."""

import importlib
import sys

ALL = ("pipeline", "wrapper", "cli", "reads", "writes", "generate", "health", "compaction", "landing", "wal")


def main() -> int:
    chosen = sys.argv[1:] or ALL
    sys.argv[1:] = []  # a benchmark that takes options of its own is run as a module of its own
    if unknown := [name for name in chosen if name not in ALL]:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(ALL)}", file=sys.stderr)
        return 2
    for name in chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n## {name}\n\n{module.__doc__}\n", flush=True)
        module.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
