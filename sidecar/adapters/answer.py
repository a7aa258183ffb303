"""An HTTP answer, and how to tell an operator of it."""

from dataclasses import dataclass

from sidecar.core.replies import error_message


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, read to its end or to the bound."""

    status: int
    content_type: str
    body: bytes
    location: str = ""


def says(answer: Answer) -> str:
    """`404: The model does not exist`, `200: a body of text/html`: an answer in a few words."""
    return f"{answer.status}: {error_message(answer.content_type, answer.body)}"
