"""A real process that appends from three threads is killed with SIGKILL at random times; its ledger says what was
acknowledged.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_options import WalOptions
from iceberg_ingest.wal_tool import dump, verify
from iceberg_manager.errors import DamageError

KILLS = int(os.environ.get("WAL_KILLS", "60"))
WRITER = """
import os, sys, threading
from pathlib import Path
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_options import WalOptions

folder, ledger, mode, life = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def work(name):
    n = 0
    while True:
        text = f"{life}-{name}-{n}"
        os.write(handle, f"sent {text}\\n".encode())
        ack = wal.append(Entry("t", "x", text.encode() * (1 + n % 50)))
        os.write(handle, f"acked {text} {ack.seq}\\n".encode())
        n += 1

wal = Wal(folder, WalOptions(mode, segment_bytes=1 << 16, min_free_bytes=0))
print("ready", flush=True)
for name in range(3):
    threading.Thread(target=work, args=(name,)).start()
"""


def killed_after(seconds: float, *arguments: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        if seconds > 0.1:
            process.stdout.readline()
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def payload(text: str) -> str:
    """As the writer makes it."""
    return text * (1 + int(text.split("-")[2]) % 50)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["always", "periodic"])
def test_what_was_acknowledged_before_a_kill_is_there_exactly_once(tmp_path: Path, mode: str) -> None:
    seed = int(os.environ.get("WAL_SEED", random.SystemRandom().randrange(10**6)))
    choice, ledger = random.Random(seed), tmp_path / "ledger"
    for life in range(KILLS):
        killed_after(choice.random() * 0.4, str(tmp_path / "wal"), str(ledger), mode, str(life))
    Wal(tmp_path / "wal", WalOptions(segment_bytes=1 << 16)).close()
    lines = [line.split() for line in ledger.read_text().splitlines()]
    sent = {words[1] for words in lines if words[0] == "sent"}
    acked = {int(words[2]): words[1] for words in lines if words[0] == "acked" and len(words) == 3}
    found = {record.seq: bytes(record.content.payload).decode() for record in dump(tmp_path / "wal")}
    assert len(acked) > 100
    for seq, text in acked.items():
        assert found.get(seq) == payload(text), f"record {seq} was acknowledged; WAL_SEED={seed}"
    assert set(found.values()) <= {payload(text) for text in sent}, "a row that nobody sent"
    assert len(set(found.values())) == len(found), "a row came back twice"
    assert verify(tmp_path / "wal").damage is None


@pytest.mark.faults
@pytest.mark.parametrize("limit", [20_000, 70_000, 150_000])
def test_a_file_size_limit_of_the_system_refuses_and_loses_nothing(tmp_path: Path, limit: int) -> None:
    """RLIMIT_FSIZE makes the kernel itself fail the write."""
    code = f"import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{WRITER}".replace(
        "print(", f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); print("
    )
    arguments = [str(tmp_path / "wal"), str(tmp_path / "ledger"), "always", "0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert "UnavailableError" in done.stderr or "File too large" in done.stderr
    acked = [line.split() for line in (tmp_path / "ledger").read_text().splitlines() if line.startswith("acked")]
    found = {record.seq for record in dump(tmp_path / "wal")}
    assert {int(words[2]) for words in acked if len(words) == 3} <= found


@pytest.mark.faults
def test_a_second_process_is_refused_while_the_first_lives_and_let_in_when_it_is_killed(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "wal"), str(tmp_path / "ledger"), "always"]
    process = subprocess.Popen([sys.executable, "-c", WRITER, *arguments, "0"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    second = subprocess.run(
        [sys.executable, "-c", WRITER, *arguments, "1"], capture_output=True, text=True, check=False
    )
    process.kill()
    process.wait()
    process.stdout.close()
    assert "in use by another process" in second.stderr
    Wal(tmp_path / "wal").close()


@pytest.mark.faults
def test_a_killed_log_with_a_flipped_byte_in_its_last_record_halts(tmp_path: Path) -> None:
    killed_after(0.3, str(tmp_path / "wal"), str(tmp_path / "ledger"), "always", "0")
    last = verify(tmp_path / "wal")
    record = [record for record in dump(tmp_path / "wal") if record.seq <= last.mark.seq][-1]
    path = last.segments[-1].path
    content = bytearray(path.read_bytes())
    content[record.offset + 50] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamageError, match="had been acknowledged"):
        Wal(tmp_path / "wal")
