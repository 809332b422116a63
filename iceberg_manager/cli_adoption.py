"""Commands for tables and files that were there before: adopt, import."""

import typer

app = typer.Typer()
