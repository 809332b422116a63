"""Commands that keep tables tidy: health, compaction, expiry, clean-up."""

import typer

app = typer.Typer()
