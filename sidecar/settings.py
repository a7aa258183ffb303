"""Settings: flag > environment > settings file > default. The only reader of the environment.

(`sidecar.check` reads WARMUP_PORT, WARMUP_HOST and WARMUP_CHECK_URL by itself: it starts every few
seconds beside the waves, and importing this module would cost more than the check.)
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sidecar.core import yamltext
from sidecar.core.errors import ConfigError, unreadable
from sidecar.core.logs.source import checked_sources
from sidecar.core.nearest import suggest
from sidecar.core.urls import EngineAddress, checked_base_url, checked_engines, parse_engines

PREFIX = "WARMUP_"
OTHERS = {
    "WARMUP_SETTINGS_FILE": "A YAML file of settings: `engine_url: …`. Flag: `--settings`.",
    "WARMUP_CHECK_URL": "What `vllm-warmup check` asks, if not this sidecar's own `/ready`.",
}
"""Names in the environment that are not settings themselves."""

FOR_TESTS = "WARMUP_TEST_"
"""Left to the project's own test suite."""

MAX_SECRET_BYTES = 64 * 1024

_SERVICE_LINK = re.compile(r"WARMUP_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)")
"""What Kubernetes puts into every pod for a Service called "warmup"."""


def _not_empty(value: object) -> object:
    """Path("") is the folder that one stands in; in the environment empty is unset."""
    if value == "":
        raise ValueError("it is empty; give a path, or leave it out")
    return value


NamedPath = Annotated[Path, BeforeValidator(_not_empty)]


class Settings(BaseSettings):
    """One frozen value, built once by `load`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid"
    )

    engine_url: Annotated[str, AfterValidator(checked_base_url)] = Field(
        default="http://vllm:8000",
        description="Base URL of the one vLLM server to warm, with its path prefix if it has one.",
    )
    engine_urls: Annotated[str, AfterValidator(checked_engines)] = Field(
        default="",
        max_length=16_384,
        description="Several servers instead, `name=url` each, such as one for each data-parallel "
        "rank: the gate opens when all are warm.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="Bearer key of the engine (`--api-key` of vLLM)."
    )
    api_key_file: NamedPath | None = Field(
        default=None, description="File that holds the key: a Docker or Kubernetes secret."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="Served model name to ask for; unset: the first that the engine lists.",
    )
    shapes: str = Field(
        default="default",
        min_length=1,
        max_length=4096,
        description="Shapes file: a path, or the name of a shipped one (`default`, `tiny`, …).",
    )
    host: str = Field(
        default="0.0.0.0",  # probes come from outside the container
        min_length=1,
        max_length=255,
        description="Address that the sidecar listens on.",
    )
    port: int = Field(
        default=8900, ge=0, le=65_535, description="Port that it listens on; 0: any free one."
    )
    ready_file: NamedPath | None = Field(
        default=None, description="File that exists while the gate is open, for exec probes."
    )
    state_dir: NamedPath | None = Field(
        default=None,
        description="Folder that keeps the verdict and the reports over a restart of the sidecar.",
    )
    state_optional: bool = Field(
        default=False,
        description="Where that folder can't be written, say so in `/ready` and go on without "
        "(the image sets it: any user may run it).",
    )
    log: Annotated[str, AfterValidator(checked_sources)] = Field(
        default="none",
        max_length=8192,
        description="Where the engine's log can be read, one place or several: `none`, "
        "`file:///path`, `docker:///name`, `syslog+unix:///path`, `syslog+tcp://host:port`, "
        "`syslog+udp://host:port`.",
    )
    log_prefix: str = Field(
        default="",
        max_length=200,
        description="What the engine's own VLLM_LOGGING_PREFIX is set to.",
    )
    require_evidence: Literal["none", "log"] = Field(
        default="none",
        description="`log`: the gate stays shut (`once`: exit 5) unless the log was seen whole.",
    )
    sleep_keeps_verdict: bool = Field(
        default=False,
        description="Open again without another warm-up after a sleep of level 1 or a pause.",
    )
    start_deadline_s: float = Field(
        default=3600.0,
        gt=0,
        le=604_800,
        description="Seconds to wait for the engine to start; after it `once` gives up (exit 4), "
        "`serve` says so and goes on trying.",
    )
    tls_ca_file: NamedPath | None = Field(
        default=None, description="CA certificates (PEM) to trust for an https engine."
    )
    tls_verify: bool = Field(
        default=True, description="Check the engine's certificate; `false` only on your own wires."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="How much to log: `debug`, `info`, `warning` or `error`."
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Repeat a run's prompts and order; unset: a new seed each run, printed.",
    )

    @property
    def engines(self) -> tuple[EngineAddress, ...]:
        """The one engine, or all of several."""
        return parse_engines(self.engine_urls) or (EngineAddress("engine", self.engine_url),)

    @property
    def has_names(self) -> bool:
        """Whether engines are shown, kept and asked for by name: also where the list has but one
        just now, so that nothing else changes when it gets a second."""
        return bool(self.engine_urls)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The settings file rides inside the init values, so that it can rank below environment.
        values = dict(init_settings())
        from_file = values.pop("__file__", {})
        return (
            InitSettingsSource(settings_cls, values),
            env_settings,
            InitSettingsSource(settings_cls, from_file),
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table in the README."""

    name: str
    default: str
    text: str


def describe() -> tuple[Setting, ...]:
    """Every setting by its name in the environment, in the order of the table."""
    rows = [
        Setting(_env_name(name), "" if field.default is None else _shown(field.default), text)
        for name, field in Settings.model_fields.items()
        if (text := field.description or "")
    ]
    return (*rows, *(Setting(name, "", text) for name, text in OTHERS.items()))


def load(flags: Mapping[str, Any] | None = None, *, settings_file: str | None = None) -> Settings:
    """Read all sources. `flags` are by field name; a None among them was not given.

    Raises ConfigError with one sentence that names the variable, flag or line.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if "engine_url" in given:
        given.setdefault("engine_urls", "")  # a flag wins over the environment, and means one
    _refuse_unknown(os.environ)
    path = settings_file or os.environ.get("WARMUP_SETTINGS_FILE")
    document = _read_file(path) if path else yamltext.Document({})
    origins = _Origins(given, document, path or "")
    try:
        settings = Settings(**(given | {"__file__": document.value}))
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors(include_url=False)[0], origins)) from None
    if settings.engine_urls and "engine_url" in settings.model_fields_set:
        raise ConfigError(
            f"{origins.of('engine_url')} stands beside {origins.of('engine_urls')}: keep the one "
            "for one server, the other for several"
        )
    return _with_key(settings, origins)


@dataclass(frozen=True, slots=True)
class _Origins:
    """Where a value came from, for the operator who has to mend it."""

    flags: Mapping[str, Any]
    document: yamltext.Document
    path: str

    def of(self, name: str) -> str:
        if name in self.flags:
            return f"--{name.replace('_', '-')}"
        if os.environ.get(_env_name(name)):
            return _env_name(name)
        if name in self.document.value:
            return f"{self.path}:{self.document.line_of((name,))}: {name}"
        return name


def _env_name(field: str) -> str:
    return PREFIX + field.upper()


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {_env_name(name) for name in Settings.model_fields} | OTHERS.keys()
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.startswith(FOR_TESTS) or name in known:
            continue
        if _SERVICE_LINK.fullmatch(name):
            raise ConfigError(
                f'{name} comes from a Kubernetes Service called "warmup"; set '
                "enableServiceLinks: false in the pod, or rename the Service"
            )
        raise ConfigError(
            f"{name} is no setting{suggest(name, known) or ' (vllm-warmup serve --help lists all)'}"
            "; correct or remove it"
        )


def _read_file(path: str) -> yamltext.Document:
    text = _read(Path(path), yamltext.MAX_BYTES, "the settings file")
    document = yamltext.load(text, path)
    if not isinstance(document.value, dict):
        raise ConfigError(f"{path}:1: the settings file must be a mapping such as `port: 8900`")
    for name in document.value:
        if name not in Settings.model_fields:
            raise ConfigError(
                f'{path}:{document.line_of((name,))}: "{name}" is no setting'
                f"{suggest(str(name), Settings.model_fields)}; correct or remove it"
            )
    return document


def _read(path: Path, limit: int, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path} can't be read {unreadable(error)}") from None
    if len(data) > limit:
        raise ConfigError(f"{what} {path} is larger than {limit // 1024} KiB; give another one")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not UTF-8 text; give another one") from None


def _with_key(settings: Settings, origins: _Origins) -> Settings:
    """The settings with the key read from its file, and checked: it must fit into a header."""
    path, key = settings.api_key_file, settings.api_key
    origin = origins.of("api_key")
    if path is not None:
        file_origin = origins.of("api_key_file")
        # A flag wins over the environment, also where it names the file.
        if key is not None and not ("api_key_file" in origins.flags and origin[0] != "-"):
            raise ConfigError(f"{origin} and {file_origin} are both set; keep one of them")
        key = SecretStr(_read(path, MAX_SECRET_BYTES, "the API key file").strip())
        origin = f"the API key file {path}"
        if not key.get_secret_value():
            raise ConfigError(f"{origin} is empty; write the key into it")
    if key is None:
        return settings
    if not re.fullmatch(r"[\x21-\x7e]+", key.get_secret_value()):
        raise ConfigError(
            f"{origin} holds spaces, line ends or non-ASCII signs; give the key alone"
        )
    return settings.model_copy(update={"api_key": key})


def _sentence(detail: ErrorDetails, origins: _Origins) -> str:
    name = str(detail["loc"][0])
    origin = origins.of(name)
    value = "***" if name == "api_key" else str(detail["input"])[:80]
    if name == "port" and value.startswith(("tcp://", "udp://")):
        return (
            f'{origin} is "{value}", which Kubernetes sets for a Service called "warmup"; set '
            "enableServiceLinks: false in the pod, or rename the Service"
        )
    context = detail.get("ctx", {})
    if "error" in context:
        return f"{origin}: {context['error']}"
    if detail["type"] == "literal_error":
        return f'{origin}: "{value}" is not allowed; use {context["expected"]}'
    message = re.sub("^(Input|String) ", "", detail["msg"]).rstrip(".")
    return f'{origin}: "{value}" {message}; correct it'
