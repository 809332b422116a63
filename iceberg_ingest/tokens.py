"""Who is asking, and whether they may: the one place that decides, and it decides no unless something says yes.

A token is known by its SHA-256 alone. The tenant comes from the token and from nowhere else; a topic's name is put
together from parts that are checked here. Without tokens (``insecure``, loopback only) the descriptor names the
tenant.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from iceberg_ingest.settings import TokenSettings
from iceberg_manager.errors import InputError
from iceberg_manager.ingest_settings import NAME_PATTERN

_NAME = re.compile(NAME_PATTERN.removeprefix("^").removesuffix("$"))
PREFIX = "iit_"


class RefusedError(InputError):
    """The caller is known but may not do this."""


@dataclass(frozen=True)
class Caller:
    """Somebody who proved who they are. ``tenant`` None: anybody, on an insecure service."""

    tenant: str | None
    token: TokenSettings | None = None


@dataclass(frozen=True)
class TopicName:
    """A tenant's topic; both parts are plain lower-case identifiers, so they are safe in paths, SQL and properties."""

    tenant: str
    topic: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.topic}"


ANYBODY = Caller(None)


def authenticate(tokens: Sequence[TokenSettings], header: str | None, now: datetime | None = None) -> Caller | None:
    """The caller that an ``authorization: Bearer …`` header belongs to, or None. Looks at every token, always."""
    scheme, _, token = (header or "").partition(" ")
    given = hashlib.sha256(token.strip().encode(errors="surrogateescape")).hexdigest()
    found = None
    for known in tokens:
        if hmac.compare_digest(known.sha256.get_secret_value(), given):
            found = known
    if found is None or scheme.lower() != "bearer" or (found.expires and found.expires <= (now or datetime.now(UTC))):
        return None
    return Caller(found.tenant, found)


def authorize(caller: Caller, action: str, path: Sequence[str]) -> TopicName:
    """The topic that ``path`` means for this caller, if they may do ``action`` with it; else RefusedError."""
    name = topic_name(path, caller.tenant)
    if caller.tenant is None:
        return name
    token = caller.token
    allowed = (
        token is not None
        and name.tenant == caller.tenant == token.tenant
        and action in token.actions
        and any(fnmatchcase(name.topic, pattern) for pattern in token.topics)
    )
    if not allowed:
        raise RefusedError(f"This token may not {action} {name}.")
    return name


def topic_name(path: Sequence[str], tenant: str | None) -> TopicName:
    """``(tenant, topic)``, ``("tenant/topic",)`` or, with a token, ``(topic,)``."""
    parts = [part for text in path for part in text.split("/")] if len(path) == 1 else list(path)
    if len(parts) == 1 and tenant is not None:
        parts = [tenant, *parts]
    if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
        raise InputError(
            "A topic is named tenant/topic; each part starts with a-z and goes on with a-z, 0-9 and _ (63 at most)."
        )
    return TopicName(*parts)


def new_token() -> tuple[str, str]:
    """A fresh token and its hash; only the hash is to be kept."""
    token = PREFIX + secrets.token_urlsafe(32)
    return token, hashlib.sha256(token.encode()).hexdigest()
