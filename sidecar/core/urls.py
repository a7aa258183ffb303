"""Addresses as operators type them."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_ENGINES = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """One of several servers; the name stands in paths, labels and file names."""

    name: str
    url: str


def parse_engines(text: str) -> tuple[EngineAddress, ...]:
    """`name=url` or `url`, separated by spaces or commas; a url without a name is called by its
    host and port. Raises ValueError with one sentence."""
    engines: list[EngineAddress] = []
    for word in text.replace(",", " ").split():
        name, equals, url = word.partition("=")
        if not equals or "/" in name:
            name, url = "", word
        url = checked_base_url(url)
        name = name or urlsplit(url).netloc.replace(":", "-")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name[:80]!a} is no name; use letters, digits, dots and dashes, or write name=url"
            )
        for other in engines:
            if name == other.name or url == other.url:
                what = name if name == other.name else url
                raise ValueError(f'"{what}" is there twice; give each server its own name and url')
        engines.append(EngineAddress(name, url))
    if len(engines) > MAX_ENGINES:
        raise ValueError(f"{len(engines)} servers are named; {MAX_ENGINES} are the most")
    return tuple(engines)


def checked_engines(text: str) -> str:
    """The text as it was, if it names servers or is empty. Raises ValueError."""
    if text and not parse_engines(text):
        raise ValueError("it names no server; write name=http://host:port, or unset it")
    return text


def checked_base_url(text: str) -> str:
    """The base URL of an engine, without a slash at its end. Raises ValueError with the remedy.

    Only the syntax: whether something answers there is for the engine's client to find out.
    """
    text = text.strip()
    if "@" in text:
        # Not repeated: it holds a password.
        raise ValueError("it holds credentials; set the API key by itself and remove them")
    if "://" not in text:
        raise ValueError(f'"{text[:80]}" has no scheme; write http://{text[:80]}')
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f'"{text[:80]}" is no URL ({error}); write http://host:port') from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f'the scheme "{parts.scheme}" is not http or https; use one of them')
    if not parts.hostname:
        raise ValueError(f'"{text[:80]}" names no host; write http://host:port')
    if port == 0 or any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f'"{text[:80]}" is no URL; write http://host:port')
    if parts.query or parts.fragment:
        # Not repeated: some put keys there.
        raise ValueError("it has a query or fragment; give the base URL alone")
    path = parts.path.rstrip("/")
    if path == "/v1":
        raise ValueError('it ends in /v1, which belongs to the routes; remove "/v1"')
    return f"{parts.scheme}://{parts.netloc}{path}"
