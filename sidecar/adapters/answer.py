"""An HTTP answer, and how to tell an operator of it."""

from dataclasses import dataclass

import httpx

from sidecar.core.wire.replies import error_message
from sidecar.core.wire.sse import one_line


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, read to its end or to the bound."""

    status: int
    content_type: str
    body: bytes
    location: str = ""
    encoding: str = ""
    """Of the body. None is asked for and none is taken off."""


def says(answer: Answer) -> str:
    """`404: The model does not exist`, `200: a body of text/html`: an answer in a few words."""
    said = error_message(answer.content_type, answer.body)
    if answer.encoding not in ("", "identity"):
        said += f", compressed by {one_line(answer.encoding, 20)} though none was asked for"
    return f"{answer.status}: {said}"


def remedy(problem: Exception) -> str:
    """What to do about a request that got no answer."""
    if isinstance(problem, httpx.TimeoutException):
        return "wait if it is starting, else see in its log what holds it up"
    if not isinstance(problem, httpx.ConnectError):
        return (
            "see in its log why, or correct WARMUP_ENGINE_URL (https:// where vLLM has "
            "--ssl-certfile)"
        )
    if "[Errno -" in str(problem):  # getaddrinfo's own numbers
        return "no such host name yet: start the engine, or correct WARMUP_ENGINE_URL"
    if "CERTIFICATE" in str(problem):
        return "set WARMUP_TLS_CA_FILE to the CA of its certificate, or correct WARMUP_ENGINE_URL"
    if "SSL" in str(problem):
        return "correct WARMUP_ENGINE_URL (http:// where vLLM has no --ssl-certfile)"
    return "nobody listens there: wait if it is starting, or correct WARMUP_ENGINE_URL"
