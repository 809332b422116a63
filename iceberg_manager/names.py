"""Table names: one spelling inside, safe in paths, in SQL and on the command line.

``orders`` means ``default.orders``; ``a.b.orders`` is table ``orders`` in the nested namespace ``a.b``.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from iceberg_manager.errors import InputError

DEFAULT_NAMESPACE = "default"
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_\- ]*[A-Za-z0-9_\-])?")


@dataclass(frozen=True, order=True)
class TableName:
    """A namespace of one or more parts, and a table in it."""

    namespace: tuple[str, ...]
    table: str

    @classmethod
    def parse(cls, text: "str | TableName") -> "TableName":
        if isinstance(text, TableName):
            return text
        parts = tuple(text.split("."))
        if bad := [part for part in parts if not _PART.fullmatch(part)]:
            raise InputError(
                f"{text!r} is not a table name: {bad[0]!r} must start with a letter, digit or underscore and hold only "
                "letters, digits, underscores, hyphens and inner spaces; namespaces are separated by dots."
            )
        return cls(parts[:-1] or (DEFAULT_NAMESPACE,), parts[-1])

    @property
    def identifier(self) -> tuple[str, ...]:
        """As PyIceberg takes it."""
        return (*self.namespace, self.table)

    @property
    def path(self) -> str:
        """As a relative folder, never inside another table's: the namespace ``a.b`` is no folder of the table ``a.b``."""
        return f"{'.'.join(self.namespace)}/{self.table}"

    def quoted(self, *prefix: str, quote: str = "`") -> str:
        """As SQL, each part quoted."""
        return ".".join(f"{quote}{part}{quote}" for part in (*prefix, *self.identifier))

    def __str__(self) -> str:
        return ".".join(self.identifier)


def did_you_mean(name: str, known: "list[str]") -> str:
    """A closing hint with the nearest known name, or nothing."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
