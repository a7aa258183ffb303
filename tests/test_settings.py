"""settings: who wins, what is refused, and with which sentence."""

import os
import re
from pathlib import Path

import pytest

from sidecar.core.errors import ConfigError
from sidecar.settings import Settings, describe, load


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine has set must not decide a test."""
    for name in list(os.environ):
        if name.startswith("WARMUP_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    """Without anything said the engine is the compose service `vllm`, the port 8900."""
    settings = load()
    assert (settings.engine_url, settings.port, settings.shapes) == (
        "http://vllm:8000",
        8900,
        "default",
    )
    assert settings.api_key is None


def test_flag_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearer a value stands to the person who types, the more it counts."""
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1\nmodel: from-file\nlog_level: debug\n")
    monkeypatch.setenv("WARMUP_PORT", "2")
    monkeypatch.setenv("WARMUP_MODEL", "from-environment")
    monkeypatch.setenv("WARMUP_SETTINGS_FILE", str(file))
    settings = load({"port": 3, "model": None})
    assert (settings.port, settings.model, settings.log_level, settings.host) == (
        3,
        "from-environment",
        "debug",
        "0.0.0.0",
    )


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`WARMUP_API_KEY: ${KEY:-}` of a compose file without a key means: no key."""
    monkeypatch.setenv("WARMUP_API_KEY", "")
    monkeypatch.setenv("WARMUP_PORT", "")
    assert (load().api_key, load().port) == (None, 8900)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://vllm:8000/", "http://vllm:8000"),
        ("https://10.0.0.7/engine/a/", "https://10.0.0.7/engine/a"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_that_are_right(given: str, kept: str) -> None:
    """A base path stays, a slash at the end goes."""
    assert load({"engine_url": given}).engine_url == kept


BAD = [
    # variable, value, what the sentence must say
    ("WARMUP_PRT", "1", r'WARMUP_PRT is no setting \(did you mean "WARMUP_PORT"\?\); .*'),
    ("WARMUP_XYZZY", "1", "WARMUP_XYZZY is no setting .*; correct or remove it"),
    ("WARMUP_PORT", "abc", 'WARMUP_PORT: "abc" should be a valid integer.*'),
    ("WARMUP_PORT", "65536", 'WARMUP_PORT: "65536" should be less than or equal to 65535.*'),
    ("WARMUP_PORT", "tcp://10.0.0.1:8900", "WARMUP_PORT is .*enableServiceLinks: false.*"),
    ("WARMUP_SERVICE_HOST", "10.0.0.1", "WARMUP_SERVICE_HOST .*enableServiceLinks: false.*"),
    (
        "WARMUP_MODEL",
        "x" * 501,
        'WARMUP_MODEL: "x+" should have at most 500 characters; correct it',
    ),
    ("WARMUP_LOG_LEVEL", "loud", 'WARMUP_LOG_LEVEL: "loud" is not allowed; use .*'),
    ("WARMUP_TLS_VERIFY", "maybe", "WARMUP_TLS_VERIFY: .*valid boolean.*"),
    ("WARMUP_START_DEADLINE_S", "0", "WARMUP_START_DEADLINE_S: .*greater than 0.*"),
    ("WARMUP_ENGINE_URL", "vllm:8000", "WARMUP_ENGINE_URL: .*no scheme; write http://vllm:8000"),
    ("WARMUP_ENGINE_URL", "ftp://vllm", 'WARMUP_ENGINE_URL: the scheme "ftp" is not http.*'),
    ("WARMUP_ENGINE_URL", "http://", "WARMUP_ENGINE_URL: .*names no host.*"),
    ("WARMUP_ENGINE_URL", "http://vllm:99999", "WARMUP_ENGINE_URL: .*out of range.*"),
    ("WARMUP_ENGINE_URL", "http://vllm:x", "WARMUP_ENGINE_URL: .*is no URL.*"),
    ("WARMUP_ENGINE_URL", "http://vllm/?a=b", "WARMUP_ENGINE_URL: .*query or fragment.*"),
    ("WARMUP_ENGINE_URL", "http://vllm/v1", "WARMUP_ENGINE_URL: it ends in /v1.*"),
    ("WARMUP_ENGINE_URL", "http://vllm:80 00", "WARMUP_ENGINE_URL: .*is no URL.*"),
    ("WARMUP_API_KEY", "two words", "WARMUP_API_KEY holds spaces.*"),
    ("WARMUP_API_KEY_FILE", "/nowhere/key", "the API key file /nowhere/key can't be read.*"),
    ("WARMUP_API_KEY_FILE", "/", "the API key file / can't be read .is a directory.; name.*"),
    ("WARMUP_SETTINGS_FILE", "/nowhere/s", "the settings file /nowhere/s can't be read.*"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), BAD)
def test_a_bad_variable_gets_one_sentence(
    name: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake is said in one line that names the variable and what to change."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load()
    assert re.fullmatch(sentence, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("name", ["state_dir", "ready_file", "api_key_file", "tls_ca_file"])
def test_an_empty_path_is_not_the_folder_that_one_stands_in(name: str) -> None:
    """`--state-dir "$FOLDER"` without a FOLDER is said, and nothing is written anywhere."""
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"^{flag}: it is empty; give a path, or leave it out$"):
        load({name: ""})


@pytest.mark.parametrize("password", ["http://u:hunter2@vllm:8000", "http://u:hunter2@h:x"])
def test_a_password_in_a_url_is_refused_and_not_repeated(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence must not carry the password into a log."""
    monkeypatch.setenv("WARMUP_ENGINE_URL", password)
    with pytest.raises(ConfigError) as caught:
        load()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("port: x\n", ".*settings.yaml:1: port: .*"),
        ("port: 1\nmodl: x\n", r'.*settings.yaml:2: "modl" is no setting \(did you mean "model".*'),
        ("- a\n", ".*settings.yaml:1: the settings file must be a mapping.*"),
        ("port: 1\nport: 2\n", '.*settings.yaml:2: the key "port" is there twice.*'),
    ],
)
def test_a_bad_settings_file_gets_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    """The file has the same bounds and the same manners as a shapes file."""
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(settings_file=str(tmp_path / "settings.yaml"))
    assert re.fullmatch(sentence, str(caught.value)), str(caught.value)


def test_the_key_comes_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret's file is read once, without its line end; the key never shows in a repr."""
    (tmp_path / "key").write_text("s3cret\n")
    monkeypatch.setenv("WARMUP_API_KEY_FILE", str(tmp_path / "key"))
    settings = load()
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the API key file .* is empty.*"),
        (b" \n\n", "the API key file .* is empty.*"),
        (b"one\ntwo\n", "the API key file .* holds spaces, line ends.*"),
        (b"\xff\xfe", "the API key file .* is not UTF-8 text.*"),
        (b"x" * 70_000, "the API key file .* is larger than 64 KiB.*"),
    ],
)
def test_a_wrong_key_file_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    """Empty, torn or huge: the sentence names the file and never quotes it."""
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load({"api_key_file": str(tmp_path / "key")})
    assert re.fullmatch(sentence, str(caught.value)), str(caught.value)


def test_a_key_and_its_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in the environment is a mistake; a flag for the file beats a key in the environment."""
    (tmp_path / "key").write_text("from-file")
    monkeypatch.setenv("WARMUP_API_KEY", "from-environment")
    key = load({"api_key_file": str(tmp_path / "key")}).api_key
    assert key is not None
    assert key.get_secret_value() == "from-file"
    monkeypatch.setenv("WARMUP_API_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ConfigError, match="WARMUP_API_KEY and WARMUP_API_KEY_FILE are both set"):
        load()


def test_names_of_the_test_suite_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """WARMUP_TEST_… belongs to this project's tests, which start the program with them around."""
    monkeypatch.setenv("WARMUP_TEST_VLLM", "/somewhere")
    assert load().port == 8900


def test_every_setting_has_a_row() -> None:
    """The README's table is made of these: none may lack its text."""
    rows = {row.name: row for row in describe()}
    assert {f"WARMUP_{name.upper()}" for name in Settings.model_fields} <= rows.keys()
    assert all(row.text for row in rows.values())
    assert rows["WARMUP_PORT"].default == "8900"


def test_several_engines_take_the_place_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both said at once is a mistake; a flag for one engine wins over the environment."""
    monkeypatch.setenv("WARMUP_ENGINE_URLS", "r0=http://h:1 r1=http://h:2")
    assert [(e.name, e.url) for e in load().engines] == [("r0", "http://h:1"), ("r1", "http://h:2")]
    assert [e.url for e in load({"engine_url": "http://one:8000"}).engines] == ["http://one:8000"]
    monkeypatch.setenv("WARMUP_ENGINE_URL", "http://one:8000")
    with pytest.raises(ConfigError, match="WARMUP_ENGINE_URL stands beside WARMUP_ENGINE_URLS"):
        load()
