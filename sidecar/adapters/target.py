"""Where the engine is, for a client that opens its own connections."""

import ssl
from dataclasses import dataclass

from sidecar.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """One origin, its base path, and what every request to it carries."""

    host: str
    port: int
    path: str
    """The base path, without a slash at its end; mostly empty."""
    tls: ssl.SSLContext | None
    authorization: str | None

    def without_key(self, body: bytes) -> bytes:
        """What the other side sent, without our key: some repeat it in their error messages, and
        those are shown to everybody who asks for /status."""
        if self.authorization is None:
            return body
        return body.replace(self.authorization.removeprefix("Bearer ").encode(), b"***")

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def tls_context(ca_file: str | None, *, verify: bool) -> ssl.SSLContext:
    """A client context; without `verify` the peer is not checked at all.

    Raises ConfigError where the CA file can't be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as problem:
        why = "it holds no PEM certificate" if isinstance(problem, ssl.SSLError) else problem
        raise ConfigError(
            f"the CA file {ca_file} can't be used ({why}): set WARMUP_TLS_CA_FILE to a PEM file"
        ) from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
