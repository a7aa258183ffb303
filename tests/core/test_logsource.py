"""What operators write into WARMUP_LOG."""

import re

import pytest

from sidecar.core.logs.source import (
    DockerSpec,
    FileSpec,
    SyslogSpec,
    Transport,
    parse_source,
    parse_sources,
)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("none", None),
        ("file:///var/log/vllm%20a.log", FileSpec("/var/log/vllm a.log")),
        ("syslog+unix:///run/warmup/log", SyslogSpec(Transport.UNIX, path="/run/warmup/log")),
        ("syslog+tcp://0.0.0.0:5514", SyslogSpec(Transport.TCP, "0.0.0.0", 5514)),
        ("syslog+udp://[::1]:514", SyslogSpec(Transport.UDP, "::1", 514)),
        ("docker:///vllm", DockerSpec("vllm")),
        ("docker:///vllm?socket=/run/d.sock", DockerSpec("vllm", "/run/d.sock")),
    ],
)
def test_each_kind_is_understood(text, spec):
    """Every form of the README names what it says."""
    assert parse_source(text) == spec


def test_senders_can_be_limited():
    """Several networks, of both families, and single addresses."""
    spec = parse_source("syslog+udp://0.0.0.0:514?allow=10.0.0.0/8,fd00::/8,192.0.2.1")
    assert [str(network) for network in spec.allow] == ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"]


@pytest.mark.parametrize(
    ("sender", "may"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("fd00::1%eth0", True), ("11.0.0.1", False)],
)
def test_a_sender_is_held_against_the_list(sender, may):
    """In whatever form the socket names it; without a list everybody may send."""
    assert parse_source("syslog+tcp://h:1?allow=10.0.0.0/8,fd00::/8").allows(sender) is may
    assert parse_source("syslog+tcp://h:1").allows(sender)


def test_several_sources_stand_side_by_side():
    """Commas and spaces both part them; a comma between addresses does not."""
    text = "file:///a, docker:///b\nsyslog+tcp://h:1?allow=10.0.0.0/8,fd00::/8 syslog+udp://h:2"
    assert [str(spec) for spec in parse_sources(text)] == [
        *("file:///a", "docker:///b", "syslog+tcp://h:1", "syslog+udp://h:2")
    ]
    assert parse_sources("none") == parse_sources(" ") == ()


def test_only_udp_is_lossy():
    """Its silence never counts."""
    urls = "file:///a docker:///b syslog+unix:///c syslog+tcp://d:1 syslog+udp://e:1"
    assert [spec.lossy for spec in parse_sources(urls)] == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/var/log/vllm.log", "write none, file:///path, docker:///name"),
        ("file://var/log", "write three slashes: file:///path"),
        ("file:///var/log/", "names no file; write file:///path/of/it"),
        ("file:///", "names no file"),
        ("syslog://h:1", "is no log source; write none"),
        ("syslog+tcp://0.0.0.0", "needs a host and a port; write syslog+tcp://0.0.0.0:5514"),
        ("syslog+tcp://0.0.0.0:x", "the port of"),
        ("syslog+udp://0.0.0.0:99999", "the port of"),
        ("syslog+udp://0.0.0.0:0", "needs a host and a port"),
        ("syslog+udp://0.0.0.0:514/x", "has a path"),
        ("syslog+udp://0.0.0.0:514?allow=all", "write allow=10.0.0.0/8"),
        ("syslog+udp://0.0.0.0:514?alow=10.0.0.0/8", 'unknown option "alow"; remove it'),
        ("syslog+unix:///" + "a" * 110, "longer than the 107 bytes"),
        ("docker://vllm", "write three slashes: docker:///name"),
        ("docker:///a/b", "names no container"),
        ("docker:///a?socket=run", "no absolute path; write ?socket=/path"),
        ("file:///a#1", "write it as %23"),
        ("file:///a?b", "is no URL"),
        ("file:///a\tb", "remove it"),
        ("syslog+udp://[::1:5", "is no URL"),
    ],
)
def test_a_mistake_gets_one_sentence(text, says):
    """What is wrong and what to write; never a traceback."""
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        parse_source(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("none file:///a", "beside other sources"),
        ("file:///a file:///a", "is named twice"),
        (" ".join(f"file:///{n}" for n in range(17)), "16 are the most"),
    ],
)
def test_sources_that_contradict_each_other(text, says):
    """They are said, not sorted out by guessing."""
    with pytest.raises(ValueError, match=says):
        parse_sources(text)
