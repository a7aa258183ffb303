"""How fast the log is read, framing included, and how much memory it takes.

    python -m benchmarks.parse [FILE …]

The lines are those of the tests' real logs, or of the files given. Seconds are of this process's
CPU, so a busy machine doesn't falsify them. A broken bound makes the exit code 1.
"""

import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from sidecar.core.logs.docker import FramedLines
from sidecar.core.logs.lines import Lines
from sidecar.core.logs.reader import LogReader
from sidecar.core.logs.syslog import DOCKER_PIECE, SyslogLines

LOGS = Path(__file__).resolve().parents[1] / "tests" / "data" / "logs"
LINES = 200_000
LEAST_PER_S = 50_000
MOST_BYTES = 2 << 20
READ = 1 << 16
HEADER = b"<30>1 2026-11-29T17:14:24.123456Z host vllm 812 vllm - "
STAMP = b"2026-11-29T17:14:24.123456789Z "

Feed = Callable[[bytes], list[str]]


def as_file(lines: list[bytes]) -> Iterator[bytes]:
    yield from reads(b"".join(line + b"\n" for line in lines))


def as_docker(lines: list[bytes]) -> Iterator[bytes]:
    payloads = (line + b"\n" for line in lines)
    yield from reads(
        b"".join(
            b"\1\0\0\0" + len(piece).to_bytes(4, "big") + piece
            for payload in payloads
            for at in range(0, len(payload), DOCKER_PIECE)
            for piece in (STAMP + payload[at : at + DOCKER_PIECE],)
        )
    )


def as_syslog(lines: list[bytes]) -> Iterator[bytes]:
    yield from reads(b"".join(HEADER + line + b"\n" for line in lines))


def as_datagrams(lines: list[bytes]) -> Iterator[bytes]:
    yield from (HEADER + line[:60_000] for line in lines)


def reads(data: bytes) -> Iterator[bytes]:
    yield from (data[at : at + READ] for at in range(0, len(data), READ))


def docker_frames() -> Feed:
    frames = FramedLines()
    return lambda data: [line.text.decode("utf-8", "replace") for line in frames.feed(data)]


def syslog_stream() -> Feed:
    syslog = SyslogLines()
    return lambda data: [line.text for line in syslog.feed(data)]


def syslog_datagrams() -> Feed:
    syslog = SyslogLines()
    return lambda data: [line.text for line in syslog.datagram(data)]


SOURCES: dict[str, tuple[Callable[[list[bytes]], Iterator[bytes]], Callable[[], Feed]]] = {
    "file": (as_file, lambda: Lines().feed),
    "docker": (as_docker, docker_frames),
    "syslog stream": (as_syslog, syslog_stream),
    "syslog datagrams": (as_datagrams, syslog_datagrams),
}


def run(reads: list[bytes], feed: Feed) -> LogReader:
    reader = LogReader()
    for data in reads:
        for line in feed(data):
            reader.feed(line)
    return reader


def hostile(count: int) -> list[bytes]:
    """Long lines without a match, lines that nearly match, and lines of a megabyte."""
    rng = random.Random(3)
    kinds = [
        b"(EngineCore pid=7) WARNING 11-29 17:16:42 [jit_monitor.py:1] Triton kernel JIT " * 5,
        b"\x1b[0;36m" * 60 + b"INFO:",
        b'{"message": "Received request: ' + b"x" * 700 + b'"}',
        b"Triton autotuning for function " + b"k" * 700,
    ]
    lines = [rng.choice(kinds) for _ in range(count)]
    lines[:: count // 20] = [b"y" * (1 << 20)] * len(lines[:: count // 20])
    return lines


def main(paths: list[str]) -> int:
    files = [Path(path) for path in paths] or sorted(LOGS.glob("*.log"))
    real = [line for path in files for line in path.read_bytes().split(b"\n") if line]
    real = (real * (LINES // len(real) + 1))[:LINES]
    print(f"{LINES:,} lines of {sum(map(len, real)) / LINES:.0f} bytes on average")
    fits = True
    for name, (framed, feed) in SOURCES.items():
        for kind, lines in (("real", real), ("hostile", hostile(LINES // 4))):
            data = list(framed(lines))
            start = time.process_time()
            reader = run(data, feed())
            per_s = reader.lines / (time.process_time() - start)
            tracemalloc.start()
            run(data[: len(data) // 10], feed())
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            fit = per_s >= LEAST_PER_S and peak <= MOST_BYTES
            fits = fits and fit
            print(
                f"{name:<17} {kind:<8} {per_s:9,.0f} lines/s ≥ {LEAST_PER_S:,}   "
                f"{peak / 1024:6.0f} KiB ≤ {MOST_BYTES >> 10:,}   {reader.matched:>7,} matched "
                f"{'ok' if fit else 'BROKEN'}"
            )
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
