"""SECURITY.md promises nothing without a test, and S11, which is about the routes."""

import re
from pathlib import Path

import httpx
import pytest

from tests.service.surface import surface
from tests.service.test_web import READY

HERE = Path(__file__).parent
PROMISES = re.findall(
    r"^\*\*S(\d+)\. ", (HERE.parents[1] / "SECURITY.md").read_text(), re.MULTILINE
)


def test_each_promise_has_a_test_and_each_test_a_promise():
    """The number stands in the test's name: `test_s6_…`, or `test_s6_s7_…` for two of them."""
    names = re.findall(
        r"^(?:async )?def test_((?:s\d+_)+)",
        "\n".join(path.read_text() for path in HERE.glob("test_*.py")),
        re.MULTILINE,
    )
    tested = {number for name in names for number in re.findall(r"s(\d+)_", name)}
    assert sorted(tested, key=int) == PROMISES


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"])
async def test_s11_no_method_but_get_and_head_is_taken(method):
    """On no route: what is shown is the same afterwards, and no page of another origin may read."""
    async with surface(READY) as shown, shown.client() as http:
        for path in ("/ready", "/health", "/startup", "/status", "/metrics", "/openapi.json"):
            answer = await http.request(method, path, headers={"Origin": "http://evil.example"})
            assert answer.status_code == 405
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert shown.snapshot is READY


@pytest.mark.parametrize("host", ["evil.example", "", "a" * 5000, "127.0.0.1:1"])
async def test_s11_the_host_header_is_never_looked_at(host):
    """The same answer, with nothing of it inside."""
    async with surface(READY) as shown:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"{shown.url}/ready", headers={"Host": host})
        assert answer.status_code == 200
        assert not host or host not in answer.text


@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/ready/../status/x", "/%2e%2e/%2e%2e/etc/passwd", "//ready", "/ready%00"],
)
async def test_s11_a_path_is_a_route_or_nothing(path):
    """No file is ever served."""
    async with surface(READY) as shown, httpx.AsyncClient(trust_env=False) as http:
        request = httpx.Request("GET", shown.url, extensions={"target": path.encode()})
        answer = await http.send(request)
        assert answer.status_code == 404
        assert answer.json()["detail"] == "Not Found"
