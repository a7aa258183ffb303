"""S4, S5: the engine's key, and whatever an engine does to get it shown."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar import wiring
from sidecar.cli.logformat import LineFormatter
from sidecar.core.errors import ConfigError
from sidecar.core.grid.shapes import parse
from sidecar.exposition import render
from sidecar.settings import load
from sidecar.simulator.server import simulator
from tests.core.test_report import REPORT
from tests.live.process import free_port
from tests.service.between import relay, reply
from tests.service.program import started
from tests.service.running import SHAPES, WARM, asking, serving
from tests.service.test_web import NOTHING

pytestmark = pytest.mark.programs

KEY = "sk-c0ffee-0123456789abcdef"
ECHO = (f"X-Echo: Bearer {KEY}", f"WWW-Authenticate: Bearer {KEY}")


def everything(folder: Path) -> str:
    """All files that a sidecar left there."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return "\n".join(path.read_text(errors="replace") for path in files)


ANSWERS = {
    "version": ("/version", reply(200, json.dumps({"version": KEY}).encode(), *ECHO)),
    "wave": (
        "/v1/completions",
        reply(500, json.dumps({"error": {"message": KEY}}).encode(), *ECHO),
    ),
    "redirect": ("/v1/models", reply(307, b"", f"Location: http://127.0.0.1:9/?key={KEY}", *ECHO)),
    "refusal": ("/v1/models", reply(401, KEY.encode(), *ECHO)),
    "health": ("/health", reply(500, KEY.encode(), *ECHO)),
    "metrics": ("/metrics", reply(200, f'vllm:x{{a="{KEY}"}} 1\n{KEY} {KEY}\n'.encode(), *ECHO)),
}


@pytest.mark.parametrize("paths", ["version wave metrics", "redirect", "refusal health"])
async def test_s4_an_engine_that_repeats_the_key_finds_it_nowhere(tmp_path, paths):
    """Not in the log, even at debug level, nor in any page, file or argument."""
    state = tmp_path / "state"
    async with simulator(WARM) as sim, relay(sim.port) as address:
        address.answers.update(ANSWERS[path] for path in paths.split())
        settings = {"PORT": free_port(), "API_KEY": KEY, "STATE_DIR": state, "LOG_LEVEL": "debug"}
        async with started("serve", address.url, tmp_path, **settings) as program:
            await program.until_said("Bearer ***")  # it was there to be hidden
            pages = await pages_of(program.url)
            pages.append(await anyio.Path(f"/proc/{program.process.pid}/cmdline").read_text())
            program.process.terminate()
            await program.process.wait()
        for told in (program.err, everything(tmp_path), *pages):
            assert KEY not in told


async def test_s4_the_key_crosses_no_redirect_and_no_proxy(tmp_path, monkeypatch):
    """Not for facts, probes or waves: the other server is never even asked."""
    async with simulator(WARM) as sim, relay(sim.port) as address, relay(sim.port) as elsewhere:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, elsewhere.url)
        for path in ("/health", "/v1/models", "/v1/completions", "/metrics", "/version"):
            moved = reply(307, b"", f"Location: {elsewhere.url}{path}")
            address.answers[path] = moved
            async with serving(address.url, api_key=KEY, state_dir=tmp_path) as sidecar:
                await sidecar.client.get("/ready?wait=0.4")
        assert elsewhere.connections == 0


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\nstate=ready forged\u202e"


async def test_s5_no_text_of_an_engine_reaches_a_terminal_as_a_command(tmp_path):
    """Its version, its models' names and its errors are shown on one line, as letters."""
    text = json.dumps(HOSTILE)[1:-1]
    for answers in (
        {
            "/version": reply(200, f'{{"version": "{text}"}}'.encode()),
            "/v1/completions": reply(500, f'{{"error": {{"message": "{text}"}}}}'.encode()),
        },
        {"/v1/models": reply(500, HOSTILE.encode(), kind="x/\x1b[2J")},
    ):
        async with simulator(WARM) as sim, relay(sim.port) as address:
            address.answers.update(answers)
            settings = {"LOG_LEVEL": "debug", "START_DEADLINE_S": 4}
            async with started("once", address.url, tmp_path, **settings) as program:
                with anyio.fail_after(90):
                    await program.process.wait()
            lines = (program.err + program.out).splitlines()
            assert len(lines) > 3
            assert [line for line in lines if not line.isprintable()] == []
            assert [line for line in lines if line.startswith("state=ready")] == []


def test_s5_no_text_of_an_engine_adds_a_sample_to_the_metrics():
    """Whatever a label says, it is a label."""
    evil = 'x"} 1\nwarmup_ready 1\n# \\'
    facts = replace(REPORT.facts, version=evil, model=evil)
    page = render(replace(NOTHING, engine=facts, url=evil)).decode()
    assert [line for line in page.splitlines() if line.startswith("warmup_ready ")] == [
        "warmup_ready 0.0"
    ]
    (info,) = [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "warmup_info"
    ]
    assert info.labels["model"] == evil


async def pages_of(url):
    """All pages, once the sidecar has tried or waited for a while."""
    told = []
    async with asking(url) as http:
        with anyio.fail_after(90):
            while len(told) < 3:
                try:
                    body = (await http.get("/ready?wait=0.5")).json()
                except httpx.TransportError:
                    continue
                told.append(json.dumps(body))
                if body["state"] in ("ready", "failed"):
                    break
        for page in ("/ready", "/status", "/metrics", "/openapi.json"):
            told.append((await http.get(page)).text)
    return told


@pytest.mark.parametrize("kind", ["key_file", "url", "url_query", "flag", "settings"])
def test_s4_a_setting_that_is_refused_is_not_repeated_with_its_secret(tmp_path, monkeypatch, kind):
    """What is wrong is said; the password in it is not."""
    file = tmp_path / "settings.yaml"
    file.write_text(f"api_key: [{KEY}]\n")
    secret = tmp_path / "key"
    secret.write_text(f"{KEY}\n{KEY}\n\x01")
    flags, settings_file = {
        "key_file": ({"api_key_file": str(secret)}, None),
        "url": ({"engine_url": f"http://user:{KEY}@vllm:8000"}, None),
        "url_query": ({"engine_url": f"http://vllm:8000?key={KEY}"}, None),
        "flag": ({"engine_url": "http://vllm:8000", "port": "x"}, None),
        "settings": ({}, str(file)),
    }[kind]
    monkeypatch.setenv("WARMUP_API_KEY", KEY)
    if kind in ("key_file", "settings"):
        monkeypatch.delenv("WARMUP_API_KEY")

    def start():
        wiring.build(load(flags, settings_file=settings_file), parse(SHAPES, "shapes.yaml"))

    with pytest.raises(ConfigError) as refused:
        start()
    assert KEY not in repr(refused.value)


def test_s4_no_flag_takes_the_key():
    """Everybody who is logged in may list the arguments of all processes."""
    for command in ("serve", "once", "plan"):
        told = subprocess.run(
            [sys.executable, "-m", "sidecar", command, "--help"],
            env={"PATH": os.environ["PATH"], "WARMUP_API_KEY": KEY},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        assert "--api-key-file" in told
        assert "--api-key " not in told
        assert KEY not in told


def test_s5_a_log_line_is_one_line_without_control_characters():
    """Whatever a library logs of what a server sent: no forged line, no command to a terminal."""
    form = LineFormatter(KEY)
    record = logging.makeLogRecord(
        {"msg": f"a\nINFO forged \x1b[2J\x9b {KEY}", "levelname": "INFO"}
    )
    line = form.format(record)
    assert r"a\nINFO forged \x1b[2J\x9b ***" in line
    assert line.isprintable()
