"""Settings → the engine that a command asks."""

from sidecar.adapters.engine import Engine
from sidecar.core.errors import ConfigError
from sidecar.settings import Settings


def engine_of(settings: Settings) -> Engine:
    """To be closed by whoever asks for it. Raises ConfigError where there are several."""
    addresses = settings.engines
    if len(addresses) > 1:
        names = ", ".join(address.name for address in addresses)
        raise ConfigError(
            f"WARMUP_ENGINE_URLS names several servers ({names}), and one is asked here: "
            "give --engine-url"
        )
    return Engine(
        addresses[0].url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        model=settings.model,
        tls_ca_file=str(settings.tls_ca_file) if settings.tls_ca_file else None,
        tls_verify=settings.tls_verify,
    )
