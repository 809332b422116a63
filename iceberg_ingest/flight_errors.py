"""What a client sees when something goes wrong: one sentence and a code, never a traceback.

``extra_info`` of the Flight error is JSON: ``code`` (invalid, too_old, exists, refused, unavailable, internal) and,
for an internal error, ``id``, under which the service's log has the rest.
"""

import functools
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from iceberg_ingest.dedupe import SameIdOtherRowsError
from iceberg_ingest.logs import log
from iceberg_ingest.tokens import RefusedError
from iceberg_manager.errors import ConflictError, InputError, LakeError, NotFoundError, UnavailableError, first_line

Handler = TypeVar("Handler", bound=Callable[..., Any])


def translated(error: BaseException) -> flight.FlightError:
    """The Flight error that stands for ``error``."""
    if isinstance(error, flight.FlightError):
        return error
    if isinstance(error, RefusedError):
        return flight.FlightUnauthorizedError(str(error), _extra("refused"))
    if isinstance(error, UnavailableError | ConflictError):
        return flight.FlightUnavailableError(str(error), _extra("unavailable"))
    if isinstance(error, InputError):
        codes = ((SameIdOtherRowsError, "exists"), (NotFoundError, "not_found"))
        code = next((code for kind, code in codes if isinstance(error, kind)), "invalid")
        return flight.FlightServerError(str(error), _extra(code))
    if isinstance(error, pa.ArrowCancelled):
        return flight.FlightCancelledError("The call was cancelled.")
    if isinstance(error, MemoryError | pa.ArrowMemoryError):
        return flight.FlightServerError("The batch needs more memory than the service may use.", _extra("invalid"))
    if isinstance(error, pa.ArrowInvalid):
        return flight.FlightServerError(f"The data cannot be read: {first_line(error)[:200]}", _extra("invalid"))
    number = secrets.token_hex(6)
    log("internal error", logging.ERROR, exc_info=error, id=number)
    text = str(error) if isinstance(error, LakeError) else "Something went wrong in the service"
    return flight.FlightInternalError(f"{text} (the service's log has it under {number})", _extra("internal", number))


def guarded(handler: Handler) -> Handler:
    """A handler whose errors are all translated."""

    @functools.wraps(handler)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 (nothing of ours may reach a client as it is)
            raise translated(error) from None

    return call  # type: ignore[return-value]


def guarded_stream(items: Iterator[Any]) -> Iterator[Any]:
    """The same for what a handler yields after it returned."""
    try:
        yield from items
    except Exception as error:  # noqa: BLE001
        raise translated(error) from None


def _extra(code: str, number: str = "") -> bytes:
    return json.dumps({"code": code, **({"id": number} if number else {})}).encode()
