"""What maintenance costs, learned from what it did cost: seconds per byte and per file, for each kind of work.

A pure function of earlier outcomes. Until there are some, a guess stands in; each outcome counts by its relative error, so
that one huge run does not drown the small ones, and a few are enough to outweigh the guess.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Literal, get_args

Kind = Literal["drop_refs", "row_ttl", "compact", "rewrite_manifests", "expire", "remove_orphans", "drop_metadata"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_GUESS_WEIGHT = 0.005
_LEAST = 1e-12


@dataclass(frozen=True)
class Outcome:
    """What one action did: files (data and delete files) and bytes it took in, files it left, and how long that took.

    ``scope`` is the partition's name, empty for the whole table; ``recipe`` is how it was done (see ``planner.recipe``).
    """

    table: str
    kind: Kind
    at: datetime
    seconds: float
    files: int = 0
    bytes: int = 0
    files_after: int = 0
    scope: str = ""
    recipe: str = ""


@dataclass(frozen=True)
class Rate:
    """Seconds for a byte and for a file."""

    per_byte: float
    per_file: float

    def seconds(self, files: int, size: int) -> float:
        return self.per_byte * size + self.per_file * files


GUESSES: Mapping[Kind, Rate] = {
    "compact": Rate(1 / 30e6, 0.001),
    "row_ttl": Rate(1 / 30e6, 0.001),
    "rewrite_manifests": Rate(1 / 5e6, 0.01),
    "expire": Rate(_LEAST, 0.002),
    "remove_orphans": Rate(_LEAST, 0.002),
    "drop_metadata": Rate(_LEAST, 0.005),
    "drop_refs": Rate(_LEAST, 0.1),
}


@dataclass(frozen=True)
class Costs:
    """A rate for each kind of work; ``start`` is what any action costs before it does anything."""

    rates: Mapping[Kind, Rate] = field(default_factory=lambda: dict(GUESSES))
    start: float = 0.5

    def seconds(self, kind: Kind, files: int, size: int) -> float:
        return self.start + self.rates[kind].seconds(files, size)


def learn(outcomes: Iterable[Outcome], start: float = 0.5) -> Costs:
    """Rates that fit the outcomes best."""
    seen: dict[Kind, list[tuple[int, int, float]]] = {}
    for one in outcomes:
        if one.seconds > 0 and (one.files or one.bytes):
            seen.setdefault(one.kind, []).append((one.files, one.bytes, max(1e-3, one.seconds - start)))
    return Costs({kind: _fit(GUESSES[kind], seen.get(kind, [])) for kind in KINDS}, start)


def _fit(guess: Rate, seen: list[tuple[int, int, float]]) -> Rate:
    """Least squares of relative errors in two unknowns, as multiples of the guess, which counts as a faint outcome."""
    if not seen:
        return guess
    # A machine ten times slower than guessed is so at everything: without this the guess would weigh too much.
    pace = median(seconds / guess.seconds(files, size) for files, size, seconds in seen)
    guess = Rate(guess.per_byte * pace, guess.per_file * pace)
    bb = ff = by = fy = _GUESS_WEIGHT
    bf = 0.0
    for files, size, seconds in seen:
        b, f = guess.per_byte * size / seconds, guess.per_file * files / seconds
        bb, ff, bf, by, fy = bb + b * b, ff + f * f, bf + b * f, by + b, fy + f
    determinant = bb * ff - bf * bf
    per_byte, per_file = (by * ff - fy * bf) / determinant, (fy * bb - by * bf) / determinant
    if per_byte < 0:
        per_byte, per_file = 0.0, fy / ff
    elif per_file < 0:
        per_byte, per_file = by / bb, 0.0
    return Rate(max(_LEAST, per_byte * guess.per_byte), max(_LEAST, per_file * guess.per_file))
