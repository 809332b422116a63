"""One spelling for a file's address, so that what engines spell differently compares equal.

``file:/x``, ``file:///x``, ``file://localhost/x`` and ``/x`` are ``/x``; ``s3a://b/k`` and ``s3n://b/k`` are ``s3://b/k``.
Nothing is decoded: to Iceberg an address is text.
"""

import re
from posixpath import normpath

_LOCAL = re.compile(r"file:(?://(?:localhost)?)?(?=/)")
_S3 = re.compile(r"s3[an]://")


def canonical(address: str) -> str:
    """The one spelling. Where the address names another host's file, that stays visible."""
    if found := _LOCAL.match(address):
        if address.startswith("file://") and not re.match(r"file://(localhost)?/", address):
            return address
        address = address[found.end() :]
    if address.startswith("/"):
        return "/" + normpath(address).lstrip("/")
    return _S3.sub("s3://", address, count=1)


def is_local(address: str) -> bool:
    """Whether a canonical address is a path on this machine."""
    return address.startswith("/")


def is_within(address: str, folder: str) -> bool:
    """Whether a canonical address is the folder or lies below it; ``/a/bc`` is not within ``/a/b``."""
    folder = folder.rstrip("/")
    return address.rstrip("/") == folder or address.startswith(folder + "/")


def path_part(address: str) -> str:
    """What is left without scheme and authority: equal parts of different addresses deserve distrust."""
    return re.sub(r"^[a-z][a-z0-9+.-]*:(//[^/]*)?", "", address)
