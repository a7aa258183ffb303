"""A sidecar process with a warm engine behind it, and what an attack costs it."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tests.live.process import free_port

SHAPES = "cells: [{concurrency: 1, prompt_tokens: 65, output_tokens: 2}]"


class Victim:
    """`ask` and `sample` are for while it is attacked."""

    def __init__(self, process, engine, log, port, log_tcp, log_udp):
        self.log = log
        self.process = process
        self.engine = engine
        self.port = port
        self.log_tcp = log_tcp
        self.log_udp = log_udp

    def connect(self, port=None):
        return socket.create_connection(("127.0.0.1", port or self.port), timeout=30)

    def ask(self, path="/ready"):
        """Status and body over a fresh connection, as a probe of Kubernetes or HAProxy asks."""
        with self.connect() as probe:
            probe.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while part := probe.recv(1 << 16):
                answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), body.decode()

    @property
    def rss_mb(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [row for row in status.splitlines() if row.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    @property
    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208

    @contextmanager
    def probed(self):
        """Probes it all the while, every 20 ms, and samples what it holds."""
        seen = Seen(self)
        thread = threading.Thread(target=seen.run, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            seen.over.set()
            thread.join(90)
            assert not thread.is_alive(), "a probe was never answered"
        assert seen.probes, "no probe was answered"


class Seen:
    """What probes saw during an attack."""

    def __init__(self, victim):
        self.victim = victim
        self.over = threading.Event()
        self.probes = []
        """(status, seconds) or (the error, seconds)."""
        self.rss_mb = 0.0
        self.files = 0

    def run(self):
        while True:
            began = time.monotonic()
            try:
                told = self.victim.ask()[0]
            except (OSError, IndexError) as problem:
                told = repr(problem)
            self.probes.append((told, time.monotonic() - began))
            self.rss_mb = max(self.rss_mb, self.victim.rss_mb)
            self.files = max(self.files, self.victim.files)
            if self.over.wait(0.02):
                return

    @property
    def slowest_s(self):
        return max(took for _, took in self.probes)

    def answers(self):
        return {told for told, _ in self.probes}


@contextmanager
def victim(folder, **more):
    """Its gate is open, and its log is read from a TCP and a UDP port."""
    port, log_tcp, log_udp, engine_port = (free_port() for _ in range(4))
    shapes = Path(folder) / "shapes.yaml"
    shapes.write_text(SHAPES)
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARMUP_")} | {
        "WARMUP_ENGINE_URL": f"http://127.0.0.1:{engine_port}",
        "WARMUP_HOST": "127.0.0.1",
        "WARMUP_PORT": str(port),
        "WARMUP_SHAPES": str(shapes),
        "WARMUP_LOG": f"syslog+tcp://127.0.0.1:{log_tcp} syslog+udp://127.0.0.1:{log_udp}",
        **more,
    }
    command = [sys.executable, "-m", "sidecar"]
    engine = subprocess.Popen(
        [*command, "sim", "--port", str(engine_port), "--time-scale", "0.05"],
        stdout=subprocess.DEVNULL,
    )
    with (Path(folder) / "sidecar.log").open("wb") as log:
        process = subprocess.Popen([*command, "serve"], env=env, stderr=log)
    try:
        made = Victim(process, engine, Path(folder) / "sidecar.log", port, log_tcp, log_udp)
        until(lambda: made.ask()[0] == 200)
        yield made
    finally:
        for one in (process, engine):
            one.kill()
            one.wait()


def until(condition, limit_s=90.0):
    end = time.monotonic() + limit_s
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.05)
