"""Addresses as operators type them."""

from urllib.parse import urlsplit


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
