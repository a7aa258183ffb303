"""`vllm-warmup check`: exit 0 if a sidecar's `/ready` says 200, else 1. For HEALTHCHECK.

It runs every few seconds beside the waves, in an image without curl: it imports nothing of this
package, and of the standard library only what a socket needs, and so costs about as much CPU as
starting Python does. That is also why it reads its variables by itself: WARMUP_PORT and
WARMUP_HOST as the sidecar does, and WARMUP_CHECK_URL for a sidecar elsewhere.
"""

import os
import signal
import socket
import sys

HELP = """\
usage: vllm-warmup check [--url URL] [--timeout-s SECONDS]

Exit 0 if the sidecar says that the engine is ready, else 1, with the reason on stdout.

  --url URL            what to ask (WARMUP_CHECK_URL; else http://127.0.0.1:8900/ready,
                       with the port of WARMUP_PORT)
  --timeout-s SECONDS  how long the whole check may take (2.5)

examples:
  vllm-warmup check
  vllm-warmup check --url http://sidecar:8900/ready
  HEALTHCHECK --interval=5s --start-period=24h CMD ["vllm-warmup", "check"]
"""

MAX_ANSWER = 1024 * 1024
"""64 engines with the reasons of twenty cells each have 200 kB."""
_ANY_HOST = {"", "0.0.0.0", "::", "[::]"}


class _Refused(Exception):
    """Why the check says no."""


def main(arguments: list[str]) -> int:
    """Run the check. Never raises: a check that breaks is a check that failed."""
    code = 0
    try:
        options = _options(arguments)
        if options is None:
            sys.stdout.write(HELP)
            return 0
        said = _ask(*options)
    except _Refused as refused:
        said, code = str(refused), 1
    # Whoever answered may have meant it for the terminal.
    sys.stdout.write("".join(c if c.isprintable() else " " for c in said) + "\n")
    return code


def _options(arguments: list[str]) -> tuple[str, float] | None:
    url, timeout_s = os.environ.get("WARMUP_CHECK_URL") or _own_url(), "2.5"
    rest = list(arguments)
    while rest:
        flag, has_value, value = rest.pop(0).partition("=")
        if flag in ("-h", "--help"):
            return None
        if flag not in ("--url", "--timeout-s") or not (has_value or rest):
            raise _Refused(f"check takes --url URL and --timeout-s SECONDS, not {flag[:60]}")
        value = value if has_value else rest.pop(0)
        url, timeout_s = (value, timeout_s) if flag == "--url" else (url, value)
    try:
        limit_s = float(timeout_s)
    except ValueError:
        limit_s = -1.0
    if not 0 < limit_s <= 60:
        raise _Refused(f"--timeout-s {timeout_s[:60]}: give seconds above 0, at most 60")
    return url, limit_s


def _own_url() -> str:
    host = os.environ.get("WARMUP_HOST", "")
    host = "127.0.0.1" if host in _ANY_HOST else host
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{host}:{os.environ.get('WARMUP_PORT') or 8900}/ready"


def _ask(url: str, timeout_s: float) -> str:
    """What the sidecar says, if it is ready; else raises _Refused with its reasons."""
    host, port, target = _parts(url)
    try:
        answer = _exchange(host, port, target, timeout_s)
    except TimeoutError:
        raise _Refused(f"{url} did not answer within {timeout_s:g} s") from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _Refused(f"{url} can't be reached: {reason.lower()}") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(None, 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise _Refused(f"{url} does not speak HTTP; point --url at a sidecar's /ready")
    said = _said(body)
    if words[1] != "200":
        raise _Refused(said or f"{url} answered {words[1]}")
    return said or "ready"


def _parts(url: str) -> tuple[str, int, str]:
    wrong = _Refused(f'"{url[:80]}" is no URL that can be checked; write http://host:port/ready')
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if scheme != "http" or not authority or "@" in authority or not url.isprintable() or " " in url:
        raise wrong
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "80"
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not is_number or not 0 < int(port) < 65_536:
        raise wrong
    return host.strip("[]"), int(port), slash + path or "/ready"


def _exchange(host: str, port: int, target: str, timeout_s: float) -> bytes:
    # One alarm over the whole: a timeout of the socket would start again with every byte.
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        with socket.create_connection((host, port)) as connection:
            # HTTP/1.0: the server closes after its answer, and sends it unchunked.
            name = f"[{host}]" if ":" in host else host
            connection.sendall(f"GET {target} HTTP/1.0\r\nHost: {name}:{port}\r\n\r\n".encode())
            answer = b""
            while len(answer) < MAX_ANSWER and (part := connection.recv(16 * 1024)):
                answer += part
            return answer
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ring(number: int, frame: object) -> None:
    raise TimeoutError


def _said(body: bytes) -> str:
    """`warming: 3 of 12 cells …` from the JSON of /ready; empty if it isn't that."""
    import json  # after the socket: a refused connection needs no parser

    try:
        answer = json.loads(body)
        state, reasons = answer["state"], answer.get("reasons") or []
        return f"{state}: {'; '.join(map(str, reasons))}" if reasons else str(state)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
