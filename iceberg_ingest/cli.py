"""``iceberg-ingest``: each command parses its arguments, makes one library call and prints the result.

Exit code 0 for success, 1 for an error that is explained in one sentence (also when ``wal verify`` finds damage), 2
for wrong usage.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from iceberg_manager.errors import LakeError, first_line

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Rows into Iceberg, durable at once.")
wal_app = typer.Typer(no_args_is_help=True, help="The write-ahead log: look into it, mend it.")
app.add_typer(wal_app, name="wal")

Folder = Annotated[Path, typer.Argument(help="The log's folder.")]


@app.callback()
def _root() -> None:
    """Keeps `wal` a command of its own however many others there are."""


@app.command()
def serve(
    lake: Annotated[Path | None, typer.Option(help="lake.yaml or the lake's folder.")] = None,
    port: Annotated[int | None, typer.Option(help="Where to listen; 0: any free port.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Ask for no token; loopback only.")] = False,
    writer: Annotated[bool, typer.Option(help="Also run the writer, which commits the rows.")] = True,
) -> None:
    """Accept rows by Arrow Flight and commit them to Iceberg, until SIGTERM or Ctrl-C."""
    from iceberg_ingest.serve import serve as run
    from iceberg_ingest.serve import with_options
    from iceberg_manager.settings import load_settings

    sys.exit(run(with_options(load_settings(lake), port, insecure), lake, writer))


@app.command()
def token(tenant: Annotated[str, typer.Argument(help="Whose token it is.")]) -> None:
    """Make a token; only its hash is to be kept, in lake.yaml."""
    from iceberg_ingest.tokens import new_token, topic_name

    topic_name([tenant, "any"], None)
    secret, digest = new_token()
    typer.echo(f"token (shown once): {secret}")
    typer.echo(f"for lake.yaml, under ingest.flight.tokens: {{sha256: {digest}, tenant: {tenant}}}")


@wal_app.command()
def verify(folder: Folder) -> None:
    """Read and check every record; changes nothing."""
    from iceberg_ingest.wal_recovery import refuse_damage
    from iceberg_ingest.wal_tool import verify as check

    found = check(folder)
    for segment in found.segments:
        typer.echo(
            f"{segment.path.name}  records {segment.header.first_seq} to {segment.last.seq}, {segment.end:,} bytes"
        )
    refuse_damage(found)
    if found.damage:
        typer.echo(f"a torn tail, which the next start cuts off: {found.damage}")
    typer.echo(f"whole: {sum(segment.records for segment in found.segments):,} records, the last is {found.last.seq}")


@wal_app.command()
def dump(
    folder: Folder,
    after: Annotated[int, typer.Option(help="Start behind this record.")] = 0,
    limit: Annotated[int, typer.Option(help="Print at most so many.")] = 1000,
) -> None:
    """One JSON line per record, without its rows."""
    from itertools import islice

    from iceberg_ingest.wal_tool import dump as records
    from iceberg_ingest.wal_tool import summary

    for record in islice(records(folder, after), limit):
        typer.echo(json.dumps(summary(record)))


@wal_app.command()
def repair(
    folder: Folder,
    salvage: Annotated[bool, typer.Option("--salvage", help="Record what was lost as a gap and go on.")] = False,
) -> None:
    """Cut off a torn tail; with --salvage also give up what cannot be read. Originals go to quarantine."""
    from iceberg_ingest.wal_tool import repair as mend

    done = mend(folder, salvage)
    if done.torn:
        typer.echo(f"cut off a torn tail: {done.torn}")
    for first, last, reason in done.gaps:
        typer.echo(f"records {first} to {last} are lost: {reason}")
    for path in done.quarantined:
        typer.echo(f"the original is kept as {path}")
    typer.echo("the log is whole")


def main() -> None:
    try:
        app()
    except LakeError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get("ICEBERG_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {first_line(error)} (ICEBERG_DEBUG=1 shows where)")


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
