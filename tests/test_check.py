"""`vllm-warmup check` in its own process, against sockets that answer as told."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.programs

READY = b'HTTP/1.1 200 OK\r\n\r\n{"state": "ready", "ready": true, "reasons": []}'
WARMING = b'HTTP/1.1 503 No\r\n\r\n{"state": "warming", "reasons": ["3 of 12 cells", "pass 1"]}'


@contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """A port where each connection gets `answer`; None: nothing ever comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            held = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    break
                connection.recv(4096)
                if answer is None:
                    held.append(connection)
                    continue
                with connection:
                    connection.sendall(answer)
            for connection in held:
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def check(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", "check", *(arguments or ("--timeout-s", "60"))],
        env={"PATH": os.environ["PATH"]} | environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (READY, 0, "ready"),
        (WARMING, 1, "warming: 3 of 12 cells; pass 1"),
        (b'HTTP/1.1 503 No\r\n\r\n{"state":"\\u001b[2J\\n\\u009b","reasons":[]}', 1, " [2J  \n"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n<html>", 1, "answered 404"),
        (b"SSH-2.0-OpenSSH\r\n", 1, "does not speak HTTP"),
        (b"", 1, "does not speak HTTP"),
        (b"HTTP/1.1 503 No\r\n\r\n" + b"[" * 500_000, 1, "answered 503"),
    ],
)
def test_exit_code_and_reason(answer: bytes, code: int, said: str) -> None:
    """0 only for 200 from /ready; whatever else comes is 1 with one line that says why."""
    with answering(answer) as port:
        done = check(WARMUP_PORT=str(port))
    assert done.returncode == code, done
    assert said in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_the_reasons_of_many_engines_are_read_to_their_end() -> None:
    """64 servers with twenty cells each: longer than one buffer, and still told."""
    reasons = [
        f"rank{n // 20}: cell {n}: held: batch not shown, 6 times in a row" for n in range(1280)
    ]
    body = json.dumps({"state": "warming", "reasons": reasons}).encode()
    with answering(b"HTTP/1.1 503 No\r\n\r\n" + body) as port:
        done = check("--url", f"http://127.0.0.1:{port}/ready", "--timeout-s", "60")
    assert done.returncode == 1
    assert reasons[-1] in done.stdout


def test_a_sidecar_that_hangs_is_given_up() -> None:
    """The whole check has one limit."""
    with answering(None) as port:
        done = check("--url", f"http://127.0.0.1:{port}/ready", "--timeout-s", "0.2")
    assert done.returncode == 1
    assert "did not answer within 0.2 s" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "sidecar"], "is no URL that can be checked"),
        (["--url", "https://sidecar/ready"], "is no URL that can be checked"),
        (["--url", "http://sidecar:²/ready"], "is no URL that can be checked"),
        (["--url", "http://sidecar:0000000000/ready"], "is no URL that can be checked"),
        (["--url", b"http://\xff/ready"], "is no URL that can be checked"),
        (["--url", "http://127.0.0.1:1/ready?wait=1"], "ready?wait=1 can't be reached"),
        (["--url"], "check takes --url URL"),
        (["--bogus"], "check takes --url URL"),
        (["--timeout-s", "soon"], "give seconds"),
        (["--url=http://127.0.0.1:1/ready"], "can't be reached: connection refused"),
    ],
)
def test_bad_arguments_are_said_and_are_no(arguments: list[str | bytes], said: str) -> None:
    """A mistyped check must not pass, nor end in a traceback."""
    done = check(*arguments)
    assert done.returncode == 1
    assert said in done.stdout
    assert done.stderr == ""


def test_it_costs_little() -> None:
    """At most 100 ms of CPU beyond what starting this Python costs: it runs beside the waves."""

    def cpu_s(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, timeout=90, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    own = [sys.executable, "-m", "sidecar", "check", "--url", "http://127.0.0.1:1/ready"]
    bare = [sys.executable, "-c", ""]
    assert min(cpu_s(own) for _ in range(3)) - min(cpu_s(bare) for _ in range(3)) < 0.1


def test_it_imports_nothing_of_the_package() -> None:
    """Neither this package's modules nor anything installed: only the standard library."""
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sidecar", "check", "--url", "x"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    ).stderr
    names = {line.rsplit("|", 1)[-1].strip() for line in listed.splitlines()}
    assert {n for n in names if n.startswith("sidecar")} == {"sidecar", "sidecar.check"}
    assert not names & {"pydantic", "yaml", "httpx", "anyio", "argparse", "asyncio"}
