"""How a table takes in files: when one counts, how its rows get in, what may differ, what becomes of it. Checked when made.

The policy travels with the table as one of its properties, so that a pass needs no more than the table to know it.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from iceberg_manager.errors import SpecError
from iceberg_manager.names import did_you_mean

Completeness = Literal["settled", "marker", "rename"]
After = Literal["move", "delete", "leave"]
How = Literal["copy", "register"]
Engine = Literal["auto", "arrow", "spark"]
Drift = Literal["strict", "additive", "ignore"]
PROPERTY = "iceberg-assets.landing.policy"
_CHOICES: dict[str, Any] = {
    "completeness": Completeness,
    "after": After,
    "how": How,
    "engine": Engine,
    "drift": Drift,
}
_AT_LEAST = {
    "settle_seconds": 0,
    "spark_from_mb": 1,
    "max_files": 1,
    "max_mb": 1,
    "max_rejected_rows": 0,
    "max_line_mb": 1,
    "max_unpack_ratio": 1,
}


@dataclass(frozen=True)
class LandingPolicy:
    """The defaults suit files that somebody copies into the folder.

    ``completeness``: ``settled`` (unchanged for ``settle_seconds``), ``marker`` (``<name>.done`` beside it, or ``_SUCCESS``
    in its folder) or ``rename`` (files appear whole). ``engine`` auto leaves batches below ``spark_from_mb`` to Arrow,
    without a JVM. ``drift``: ``strict`` refuses a file with unknown columns, ``additive`` adds them and widens types,
    ``ignore`` drops them. A file with more than ``max_rejected_rows`` bad rows is refused as a whole.
    """

    completeness: Completeness = "settled"
    settle_seconds: float = 5
    after: After = "move"
    how: How = "copy"
    engine: Engine = "auto"
    spark_from_mb: int = 256
    drift: Drift = "strict"
    create_from_first_batch: bool = False
    max_files: int = 1000
    max_mb: int = 2048
    max_rejected_rows: int = 100
    max_line_mb: int = 32
    max_unpack_ratio: int = 50

    def __post_init__(self) -> None:
        for option, choices in _CHOICES.items():
            given, known = getattr(self, option), list(get_args(choices))
            if given not in known:
                raise SpecError(
                    f"landing: {option} {given!r} is not one of {', '.join(known)}.{did_you_mean(str(given), known)}"
                )
        for option, least in _AT_LEAST.items():
            if getattr(self, option) < least:
                raise SpecError(f"landing: {option} is at least {least}, not {getattr(self, option)}.")
        if self.how == "register":
            self._refuse_with_register()

    def _refuse_with_register(self) -> None:
        if self.after != "move":
            raise SpecError(
                "landing: a registered file becomes the table's own, so it can neither be deleted nor left where it "
                "lies: use after='move'."
            )
        if self.engine == "spark":
            raise SpecError("landing: registering copies no rows, so there is nothing for engine='spark' to do.")

    def to_property(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def of_property(cls, text: str | None) -> "LandingPolicy | None":
        """What a table's property says; options that another version wrote and this one does not know are left out."""
        if text is None:
            return None
        try:
            given = json.loads(text)
            known = {item.name for item in fields(cls)}
            return cls(**{key: value for key, value in given.items() if key in known})
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(f"The table property {PROPERTY} does not hold a landing policy: {error}.") from error
