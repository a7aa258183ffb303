"""Settings → the engine that a command asks."""

from sidecar.adapters.engine import Engine
from sidecar.settings import Settings


def engine_of(settings: Settings) -> Engine:
    """To be closed by whoever asks for it."""
    return Engine(
        settings.engine_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        model=settings.model,
        tls_ca_file=str(settings.tls_ca_file) if settings.tls_ca_file else None,
        tls_verify=settings.tls_verify,
    )
