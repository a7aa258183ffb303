"""An engine and a gate that do as they are told, and count."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

EVENT = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'
DONE = b"data: [DONE]\n\n"
LIMIT_S = 120.0


class Fake:
    """Engine and gate at one address: `/ready` and POST."""

    def __init__(
        self,
        *,
        ready: bool = True,
        gate_takes_s: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.ready = ready
        self.gate_takes_s = gate_takes_s
        self.breaks_off = False
        """The connection is closed when the request has come, before any answer."""
        self.go_on = threading.Event()
        """The second event of an answer waits for it."""
        self.go_on.set()
        self.posts: list[str] = []
        """Paths of what came."""
        self.bodies: list[int] = []
        """Their lengths."""
        self.origins: list[str] = []
        """Of each request, the address and port that its connection came from."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                is_gate = self.path == "/ready"
                if is_gate:
                    time.sleep(fake.gate_takes_s)
                self.send_response(503 if is_gate and not fake.ready else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                fake.bodies.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
                fake.posts.append(self.path)
                fake.origins.append("{}:{}".format(*self.client_address[:2]))
                self.close_connection = self.close_connection or fake.breaks_off
                if fake.breaks_off:
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for event in (EVENT, EVENT + DONE):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                    self.wfile.flush()
                    fake.go_on.wait(LIMIT_S)
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        return "{}:{}".format(*self._server.server_address[:2])

    @property
    def port(self) -> int:
        return self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
