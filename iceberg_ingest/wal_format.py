"""How the write-ahead log looks on disk. Pure functions between bytes and records; nothing here touches a file.

A segment is a 64-byte header and then frames, each starting at a multiple of eight. A frame's header has a checksum
of its own, so a flipped length is damage and never a plausible tail; it names the chain value before it, so that
records cannot be dropped, repeated, swapped or spliced in; and it says where its group of writes began, which tells
what had been acknowledged when it was written. All numbers are little-endian. Decoding never raises for bad bytes and
never allocates more than the limit: it says what it found.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

Buffer = bytes | bytearray | memoryview

FORMAT = 1
CRC32_ZLIB = 1
ALIGNMENT = 8
MAX_BODY_BYTES = 16 << 20
SEGMENT_HEADER_BYTES = 64
FRAME_MAGIC = 0x4C41_5749 ^ 0x8080_8080  # no ASCII text holds it
_SEGMENT = struct.Struct("<4sHH16sQQQQ")
_FRAME = struct.Struct("<IIQQIII")
_CHECKSUM = struct.Struct("<I")
_ENTRY = struct.Struct("<HHHHQQ")
_GAP = struct.Struct("<QQ")
FRAME_HEADER_BYTES = _FRAME.size + _CHECKSUM.size
MAGIC_BYTES = _CHECKSUM.pack(FRAME_MAGIC)


class Kind(IntEnum):
    """What a frame holds: rows, or the admission that some were lost."""

    ENTRY = 1
    GAP = 2


@dataclass(frozen=True)
class SegmentHeader:
    """The first 64 bytes of a segment: whose it is, and where it goes on from."""

    wal_id: UUID
    epoch: int
    first_seq: int
    prev_chain: int
    created_ms: int

    def encode(self) -> bytes:
        packed = _SEGMENT.pack(
            b"IWAL", FORMAT, CRC32_ZLIB, self.wal_id.bytes, self.epoch, self.first_seq, self.prev_chain, self.created_ms
        )
        return (packed + _CHECKSUM.pack(zlib.crc32(packed))).ljust(SEGMENT_HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, data: Buffer) -> "SegmentHeader | str":
        """The header, or what is wrong with it."""
        if len(data) < SEGMENT_HEADER_BYTES:
            return f"the segment's header is cut off after {len(data)} bytes"
        given = bytes(data[:SEGMENT_HEADER_BYTES])
        magic, version, flags, wal_id, epoch, first_seq, prev_chain, created_ms = _SEGMENT.unpack_from(given)
        header = cls(UUID(bytes=wal_id), epoch, first_seq, prev_chain, created_ms)
        checked = _CHECKSUM.unpack_from(given, _SEGMENT.size)[0] == zlib.crc32(given[: _SEGMENT.size])
        if magic == b"IWAL" and checked and (version, flags) != (FORMAT, CRC32_ZLIB):
            return f"the segment has format {version} with checksum {flags}, which this version cannot read"
        return header if given == header.encode() else "the segment's header fails its checksum"


@dataclass(frozen=True)
class Entry:
    """What is logged: one payload (an Arrow IPC stream) for one table of one tenant, with the ids that make a resend
    harmless.
    """

    tenant: str
    table: str
    payload: Buffer
    batch_id: str = ""
    producer: str = ""
    producer_seq: int = 0
    received_ms: int = 0

    def head(self) -> bytes:
        """All but the payload, padded so that the payload is aligned for Arrow."""
        texts = [text.encode() for text in (self.tenant, self.table, self.batch_id, self.producer)]
        head = _ENTRY.pack(*map(len, texts), self.producer_seq, self.received_ms) + b"".join(texts)
        return head + bytes(padding(len(head)))

    @classmethod
    def decode(cls, body: memoryview) -> "Entry | str":
        if len(body) < _ENTRY.size:
            return "the entry's head is cut off"
        *lengths, producer_seq, received_ms = _ENTRY.unpack_from(body)
        end = _ENTRY.size + sum(lengths)
        payload_at = end + padding(end)
        if payload_at > len(body):
            return "the entry's names reach past its end"
        try:
            tenant, table, batch_id, producer = _texts(bytes(body[_ENTRY.size : end]), lengths)
        except UnicodeDecodeError:
            return "the entry's names are not UTF-8"
        return cls(tenant, table, body[payload_at:], batch_id, producer, producer_seq, received_ms)


@dataclass(frozen=True)
class Gap:
    """In place of records that were lost: the last of them, and the chain value from which the log goes on (0: the
    gap's own).
    """

    to_seq: int
    resume_chain: int
    reason: str

    def encode(self) -> bytes:
        return _GAP.pack(self.to_seq, self.resume_chain) + self.reason.encode()

    @classmethod
    def decode(cls, body: memoryview) -> "Gap | str":
        if len(body) < _GAP.size:
            return "the gap record is cut off"
        to_seq, resume_chain = _GAP.unpack_from(body)
        return cls(to_seq, resume_chain, bytes(body[_GAP.size :]).decode(errors="replace"))


class FrameHeader(NamedTuple):
    """A frame's header: ``group_first`` is the first sequence number of the group that was written, and acknowledged,
    together.
    """

    body_bytes: int
    seq: int
    prev_chain: int
    kind: int
    group_first: int
    body_crc: int

    def encode(self, salt: int) -> bytes:
        packed = _FRAME.pack(
            FRAME_MAGIC,
            self.body_bytes,
            self.seq,
            self.prev_chain,
            self.kind,
            self.seq - self.group_first,
            self.body_crc,
        )
        return packed + _CHECKSUM.pack(zlib.crc32(packed, salt))

    @classmethod
    def decode(cls, data: Buffer, offset: int, salt: int) -> "FrameHeader | None":
        """The header at ``offset`` if its own checksum holds."""
        if offset + FRAME_HEADER_BYTES > len(data):
            return None
        magic, body_bytes, seq, prev_chain, kind, back, body_crc = _FRAME.unpack_from(data, offset)
        (checksum,) = _CHECKSUM.unpack_from(data, offset + _FRAME.size)
        if magic != FRAME_MAGIC or zlib.crc32(data[offset : offset + _FRAME.size], salt) != checksum:
            return None
        return cls(body_bytes, seq, prev_chain, kind, seq - back, body_crc)

    @property
    def frame_bytes(self) -> int:
        return frame_bytes(self.body_bytes)


def salt_of(wal_id: UUID) -> int:
    """Starts every frame's header checksum, so that the frames of another log are no frames of this one."""
    return zlib.crc32(wal_id.bytes)


def chain_after(header: Buffer) -> int:
    """The chain value after a frame, from its encoded header (which holds the value before it and the body's
    checksum).
    """
    return int.from_bytes(blake2b(header, digest_size=8).digest(), "little")


def padding(length: int) -> int:
    return -length % ALIGNMENT


def frame_bytes(body_bytes: int) -> int:
    """How much room a frame with such a body takes in its segment."""
    return FRAME_HEADER_BYTES + body_bytes + padding(body_bytes)


def checksum_of(parts: Iterable[Buffer]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def segment_name(first_seq: int) -> str:
    return f"wal-{first_seq:020d}.log"


def first_seq_of(name: str) -> int | None:
    """The sequence number in a segment's name, or None if the name is not a segment's."""
    digits = name[4:-4]
    is_segment = name.startswith("wal-") and name.endswith(".log") and len(digits) == 20 and digits.isdecimal()
    return int(digits) if is_segment and name == segment_name(int(digits)) else None


def _texts(data: bytes, lengths: Sequence[int]) -> list[str]:
    texts, at = [], 0
    for length in lengths:
        texts.append(data[at : at + length].decode())
        at += length
    return texts
