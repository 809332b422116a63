"""Column and partition bounds, which Iceberg stores as bytes, as numbers or text that compare; and how far files overlap."""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
)

if TYPE_CHECKING:
    import numpy as np

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, BooleanType)


def comparable(values: Sequence[bytes], kind: IcebergType) -> "np.ndarray[Any, Any]":
    """Bounds of one column in an order that numpy knows. A column made wider has bounds of both lengths."""
    import numpy as np

    if isinstance(kind, _WHOLE):
        if values and all(len(value) == 8 for value in values):
            return np.frombuffer(b"".join(values), dtype="<i8")
        return np.array([int.from_bytes(value, "little", signed=True) for value in values], dtype=np.int64)
    if isinstance(kind, FloatType | DoubleType):
        return np.array([struct.unpack("<f" if len(value) == 4 else "<d", value)[0] for value in values], dtype=float)
    if isinstance(kind, DecimalType):
        return np.array([int.from_bytes(value, "big", signed=True) for value in values], dtype=object)
    return np.array([*values, None], dtype=object)[:-1]  # the None keeps numpy from making fixed-width text of bytes


def of_time(moment: datetime, kind: IcebergType) -> int:
    """A moment as a bound of a date or timestamp column."""
    passed = moment - _EPOCH
    return passed.days if isinstance(kind, DateType) else passed.days * 86_400_000_000 + passed.seconds * 1_000_000


def overlaps(
    low: "np.ndarray[Any, Any]",
    high: "np.ndarray[Any, Any]",
    groups: "np.ndarray[Any, Any] | None" = None,
    touching: bool = False,
) -> int:
    """For each range, how many others of its group overlap it; the sum over all ranges.

    Sharing just an end counts only if ``touching`` is asked for. Without it, ranges of one single value are counted too low
    rather than too high: files in perfect order may well hold the same value.
    """
    import numpy as np

    if len(low) < 2:
        return 0
    values, ranks = np.unique(np.concatenate([low, high]), return_inverse=True)
    if groups is not None:
        # Shifting each group past the ones before it lets one pass serve them all.
        shift = np.unique(groups, return_inverse=True)[1].astype(np.int64) * len(values)
        ranks = ranks + np.concatenate([shift, shift])
    first, last = ranks[: len(low)], ranks[len(low) :]
    if touching:
        begun = np.searchsorted(np.sort(first), last, side="right")
        ended = np.searchsorted(np.sort(last), first, side="left")
        return int((begun - ended - 1).sum())
    begun = np.searchsorted(np.sort(first), last, side="left")
    ended = np.searchsorted(np.sort(last), first, side="right")
    return int(np.clip(begun - ended - (first < last), 0, None).sum())
