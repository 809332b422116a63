"""Commands for files that arrive: what waits, one pass, retry, discard."""

import typer

app = typer.Typer()
