"""What probes, pages and Prometheus see of a snapshot."""

from dataclasses import replace

import anyio
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar import __version__
from sidecar.core.grid.cells import Gait
from sidecar.core.judge.calls import CellLog
from sidecar.core.judge.passes import Progress
from sidecar.core.logs.events import Compile
from sidecar.core.logs.evidence import Hearing
from sidecar.core.logs.head import Origin
from sidecar.core.logs.items import Counts, SourceState
from sidecar.core.results import Outcome
from sidecar.core.tally import Totals, WaveOutcome, WaveRow
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.escapes import MAX_LABELS, Escapes
from sidecar.core.watch.gate import Snapshot, State
from sidecar.exposition import bounded
from sidecar.web.app import create_app
from sidecar.web.pages import MAX_ASKING, Page
from tests.core.test_report import COLD, KERNELS, REPORT, VERDICT
from tests.service.surface import surface

NOTHING = Snapshot(url="http://vllm:8000", state=State.WAITING, since=1_700_000_000.25)

WARMING = Snapshot(
    url="http://vllm:8000",
    state=State.WARMING,
    since=1_700_000_000.0,
    warnings=("max_num_seqs is not known",),
    progress=Progress(passes=2, cells_done=1, cells_total=2, waves_left=3),
    eta_s=4.5,
    engine=REPORT.facts,
    boot=BootMark(process_start_s=1_600_000_000.0),
    verdict=VERDICT,
    waves=(
        WaveRow(COLD.id, Gait.LED, 1_700_000_001.0, WaveOutcome.VALID, (), True, 3.5, 0.1, 4, 0, 4),
        WaveRow(
            COLD.id,
            Gait.HELD,
            1_700_000_002.0,
            WaveOutcome.FAILED,
            ("500",),
            False,
            None,
            0,
            1,
            0,
            4,
        ),
    ),
    waves_dropped=3,
    totals=Totals(
        boots=2,
        passes=2,
        waves={WaveOutcome.VALID: 9},
        requests={Outcome.OK: 30, Outcome.HTTP_ERROR: 1},
        prompt_tokens=1000,
        output_tokens=50,
    ),
    is_active=True,
    warmup_s=12.5,
    nonce="ab12",
)

READY = replace(WARMING, state=State.READY, proven=True, adopted=True, is_active=False, eta_s=None)


def client(snapshot):
    transport = httpx.ASGITransport(create_app(lambda: snapshot))
    return httpx.AsyncClient(transport=transport, base_url="http://sidecar")


async def test_ready_is_503_with_all_fields_before_anything_is_known():
    """Probes have a body to read from the first moment on; what isn't known is null."""
    async with client(NOTHING) as http:
        answer = await http.get("/ready")
    assert answer.status_code == 503
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {
        "state": "waiting",
        "ready": False,
        "proven": False,
        "adopted": False,
        "reasons": ["the engine at http://vllm:8000 is being looked at; wait"],
        "warnings": [],
        "progress": None,
        "engine": {"url": "http://vllm:8000", "version": None, "model": None},
        "boot": None,
        "since": "2023-11-14T22:13:20.250000Z",
        "engines": [],
    }


async def test_ready_is_200_only_in_the_open_state():
    """The status and the body say the same, in every state."""
    for state in State:
        async with client(replace(WARMING, state=state)) as http:
            answer = await http.get("/ready")
        is_open = state is State.READY
        assert answer.status_code == (200 if is_open else 503)
        assert (answer.json()["ready"], answer.json()["state"]) == (is_open, state)


async def test_ready_tells_progress_and_boot():
    """A person who asks meanwhile sees how far it is, and of which life of the engine."""
    async with client(WARMING) as http:
        body = (await http.get("/ready")).json()
    assert body["progress"] == {"cells_done": 1, "cells_total": 2, "pass": 2, "eta_s": 4.5}
    assert body["boot"] == {"number": 2, "started": "2020-09-13T12:26:40Z", "nonce": "ab12"}
    assert body["engine"]["model"] == "tiny"


@pytest.mark.parametrize("path", ["/health", "/startup"])
async def test_liveness_and_startup_never_wait_for_the_engine(path):
    """200 from the first moment, whatever the gate says."""
    async with client(NOTHING) as http:
        answer = await http.get(path)
    assert (answer.status_code, answer.json()["version"]) == (200, __version__)


async def test_status_has_every_cell_with_its_waves():
    """The rows of a cell are under it, oldest first, with what was wrong with them."""
    async with client(WARMING) as http:
        body = (await http.get("/status")).json()
    first, cold = body["cells"]
    assert first["waves"] == []
    assert cold["id"] == COLD.id
    assert cold["verdict"] == "not_yet"
    assert cold["standing"] == "cold"
    assert [w["outcome"] for w in cold["waves"]] == ["valid", "failed"]
    assert cold["waves"][1]["because"] == ["500"]
    assert cold["waves"][1]["f_s"] is None
    assert cold["figures"][0]["first_f_s"] == 3.5
    assert body["facts"]["max_model_len"] == 8192
    assert body["waves_dropped"] == 3
    assert body["totals"]["requests"] == {"ok": 30, "http_error": 1}


async def test_status_before_anything_is_known():
    """No cells, no facts, no error."""
    async with client(NOTHING) as http:
        body = (await http.get("/status")).json()
    assert (body["cells"], body["facts"], body["verdict"]) == ([], None, None)


async def test_head_says_what_get_would():
    """A prober that asks by HEAD gets the same status and headers, and no body."""
    for snapshot in (NOTHING, WARMING, READY):
        async with surface(snapshot) as shown, shown.client() as http:
            for path in ("/ready", "/health", "/startup", "/status", "/metrics"):
                head, got = await http.head(path), await http.get(path)
                assert head.status_code == got.status_code
                assert timeless(head) == timeless(got)
                assert (head.content, len(got.content)) == (b"", int(got.headers["content-length"]))


def timeless(answer):
    return {name: value for name, value in answer.headers.items() if name != "date"}


async def test_ready_is_one_line():
    """For scripts that read lines, and for people with curl."""
    for snapshot in (NOTHING, WARMING, READY):
        async with client(snapshot) as http:
            text = (await http.get("/ready")).text
        assert (text.count("\n"), text[-1]) == (1, "\n")


async def test_a_shut_gate_says_when_to_ask_again():
    """Whole seconds, of the estimate where there is one, within bounds; none where it is open."""
    for snapshot, seconds in (
        (NOTHING, "5"),
        (WARMING, "5"),  # 4.5 s, rounded up
        (replace(WARMING, eta_s=0.01), "1"),
        (replace(WARMING, eta_s=1e9), "300"),
        (replace(WARMING, eta_s=None), "5"),
        (replace(WARMING, state=State.FAILED, eta_s=50.0), "5"),
        (READY, None),
    ):
        async with client(snapshot) as http:
            assert (await http.get("/ready")).headers.get("retry-after") == seconds


async def test_a_shut_gate_says_what_it_does():
    """Pass, cell and what is left while it warms, and what stands in the way beside it."""
    warming = replace(WARMING, cell="completions-c1-p8-o2", reasons=("the engine serves others",))
    for snapshot, said in (
        (
            warming,
            "warming: pass 2, now completions-c1-p8-o2; 1 of 2 cells done, at least 3 waves to go; "
            "wait, about 5 s",
        ),
        (replace(warming, eta_s=None), "wait, how long is not known yet"),
        (replace(warming, progress=None), "warming: the first wave is being made ready"),
        (warming, "the engine serves others"),
        (replace(warming, state=State.FAILED), "the engine serves others"),
    ):
        async with client(snapshot) as http:
            assert said in " | ".join((await http.get("/ready")).json()["reasons"])
    async with client(READY) as http:
        assert (await http.get("/ready")).json()["reasons"] == []


@pytest.mark.parametrize("wait", ["0", "-1", "301", "nan", "inf", "soon", "", "1e999", "x" * 9000])
async def test_a_wait_that_can_not_be_waited_is_refused_in_one_sentence(wait):
    """What was given, and what to give; whatever the gate says."""
    for snapshot in (NOTHING, READY):
        async with client(snapshot) as http:
            answer = await http.get("/ready", params={"wait": wait})
        assert answer.status_code == 422
        assert answer.json() == {"detail": f"wait={wait[:40]!r}: give seconds above 0, at most 300"}


async def test_an_open_gate_is_told_at_once_to_those_who_would_wait():
    """And a shut one when the time is up."""
    async with client(READY) as http:
        assert (await http.get("/ready?wait=300")).status_code == 200
    async with client(NOTHING) as http:
        assert (await http.get("/ready?wait=0.05")).status_code == 503


async def test_long_pages_are_rendered_once_and_bounded_in_those_who_ask():
    """Whoever asks meanwhile gets the same one; more than 32 are told to come again."""
    rendered = []

    def render(value):
        rendered.append(value)
        return b"page"

    page = Page(lambda: "now", render)
    got = []

    async def ask():
        got.append(await page.of_now())

    async with anyio.create_task_group() as group:
        for _ in range(MAX_ASKING + 3):
            group.start_soon(ask)
    assert (got.count(b"page"), got.count(None), rendered) == (MAX_ASKING, 3, ["now"])


async def test_an_unknown_path_and_a_wrong_method_are_json():
    """404 and 405 in the form of everything else; no route changes anything."""
    async with client(READY) as http:
        lost = await http.get("/nope")
        wrong = await http.post("/ready")
    assert (lost.status_code, wrong.status_code) == (404, 405)
    assert lost.json()["detail"]
    assert wrong.json()["detail"]


async def test_the_openapi_document_describes_what_is_answered():
    """Every route, both answers of /ready, and bodies that hold to their schema."""
    async with client(WARMING) as http:
        document = (await http.get("/openapi.json")).json()
        ready = (await http.get("/ready")).json()
        status = (await http.get("/status")).json()
    assert set(document["paths"]) == {
        *("/health", "/startup", "/ready", "/ready/{engine}", "/status", "/metrics")
    }
    assert all(set(methods) == {"get"} for methods in document["paths"].values())
    responses = document["paths"]["/ready"]["get"]["responses"]
    assert set(responses) == {"200", "503", "422"}
    assert responses["503"]["headers"]["Retry-After"]["schema"]["type"] == "integer"
    (wait,) = document["paths"]["/ready"]["get"]["parameters"]
    assert (wait["name"], wait["required"]) == ("wait", False)
    schemas = document["components"]["schemas"]
    for answer in (responses["200"], responses["503"]):
        ref = answer["content"]["application/json"]["schema"]["$ref"]
        assert set(schemas[ref.rsplit("/", 1)[1]]["properties"]) == set(ready)
    assert set(schemas["Status"]["properties"]) == set(status)
    assert set(schemas["Progress"]["properties"]) == set(ready["progress"])
    assert set(schemas["CellStatus"]["properties"]) == set(status["cells"][0])


async def samples(snapshot):
    async with client(snapshot) as http:
        answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_metrics_tell_state_and_gate():
    """The state is one-hot; the flags are the snapshot's."""
    values = await samples(READY)
    assert sum(values["warmup_state", ("state", s)] for s in State) == 1
    assert values["warmup_state", ("state", "ready")] == 1
    for name, value in (("ready", 1), ("proven", 1), ("adopted", 1), ("active", 0)):
        assert values[(f"warmup_{name}",)] == value
    info = next(dict(key[1:]) for key in values if key[0] == "warmup_info")
    assert info == {
        "version": __version__,
        "engine_url": "http://vllm:8000",
        "engine_version": "0.33.0",
        "model": "tiny",
    }


async def test_metrics_tell_what_was_sent_and_seen():
    """Counters, cells by verdict, and the figures of each cell in seconds."""
    values = await samples(WARMING)
    assert values[("warmup_engine_boots_total",)] == 2
    assert values[("warmup_passes_total",)] == 2
    assert values["warmup_waves_total", ("outcome", "valid")] == 9
    assert values["warmup_waves_total", ("outcome", "cancelled")] == 0
    assert values["warmup_requests_total", ("outcome", "http_error")] == 1
    assert values[("warmup_sent_prompt_tokens_total",)] == 1000
    assert values[("warmup_sent_output_tokens_total",)] == 50
    assert values[("warmup_duration_seconds",)] == 12.5
    assert values["warmup_cells", ("verdict", "not_yet")] == 1
    assert values["warmup_cells", ("verdict", "unknown")] == 0
    figure = ("cell", COLD.id), ("figure", "first"), ("gait", "led"), ("rank", "")
    assert values["warmup_first_token_seconds", *figure] == 3.5


async def test_a_cell_tells_its_data_parallel_rank():
    """In /status, and in a label of its figures."""
    cells = [
        replace(c, cell=replace(c.cell, rank=1)) if c.cell == COLD else c for c in VERDICT.cells
    ]
    snapshot = replace(WARMING, verdict=replace(VERDICT, cells=tuple(cells)))
    async with client(snapshot) as http:
        status = (await http.get("/status")).json()
    assert {c["rank"] for c in status["cells"]} == {1, None}
    figure = ("cell", f"{COLD.id}-dp1"), ("figure", "first"), ("gait", "led"), ("rank", "1")
    assert (await samples(snapshot))["warmup_first_token_seconds", *figure] == 3.5


async def test_what_is_not_there_has_no_sample():
    """Before the first verdict there are no cells; nothing reads as zero seconds."""
    values = await samples(NOTHING)
    assert not any(key[0] in ("warmup_cells", "warmup_first_token_seconds") for key in values)
    assert ("warmup_duration_seconds",) not in values
    assert values[("warmup_ready",)] == 0


HEARD = replace(
    WARMING,
    verdict=replace(
        VERDICT,
        cells=(VERDICT.cells[0], replace(VERDICT.cells[1], kernels=KERNELS, compile_s=3.1)),
        log=CellLog(Hearing.ONCE_ONLY, "once-only: no --jit-monitor-verbose"),
        evidence="log+latency+metrics",
    ),
)


async def test_status_tells_what_each_cell_compiled():
    """Kernels and seconds by cell, and how far the log carries the verdict."""
    async with client(HEARD) as http:
        body = (await http.get("/status")).json()
    assert (body["evidence"], body["log"]) == (
        "log+latency+metrics",
        "once-only: no --jit-monitor-verbose",
    )
    cold = body["cells"][1]
    assert cold["compile_s"] == 3.1
    assert cold["kernels"][0] == {"backend": "Triton", "kernel": "moe", "lines": 2, "cost_s": 3.1}


async def test_metrics_tell_what_compiled():
    """Lines by kernel, seconds by cell, the hearing; nothing of it where no log is read."""
    values = await samples(HEARD)
    assert values["warmup_jit_compiles", ("backend", "Triton"), ("kernel", "moe")] == 2
    assert values["warmup_jit_compile_seconds", ("cell", COLD.id)] == 3.1
    assert values["warmup_log_evidence", ("hearing", "once-only")] == 1
    assert values["warmup_log_evidence", ("hearing", "complete")] == 0
    assert not any("jit" in key[0] or "log_" in key[0] for key in await samples(WARMING))


async def test_metrics_and_status_tell_what_was_read_and_what_was_lost():
    """By source; drops of the kernel only where it tells them."""
    counts = Counts(lines=10, breaks=1, cut_lines=2, dropped_lines=3)
    logs = (
        SourceState("file:///a", counts),
        SourceState("syslog+udp://b:1", replace(counts, kernel_drops=4), "nobody may listen here"),
    )
    values = await samples(replace(WARMING, logs=logs))
    for source, up in (("file:///a", 1), ("syslog+udp://b:1", 0)):
        assert values["warmup_log_up", ("source", source)] == up
        assert values["warmup_log_lines_total", ("source", source)] == 10
        assert values["warmup_log_breaks_total", ("source", source)] == 1
    lost = {key[1:]: n for key, n in values.items() if key[0] == "warmup_log_lost_lines_total"}
    assert sorted(lost.values()) == [2, 2, 3, 3, 4]
    assert lost[("source", "syslog+udp://b:1"), ("why", "kernel")] == 4
    async with client(replace(WARMING, logs=logs)) as http:
        told = (await http.get("/status")).json()["logs"]
    assert told[1]["trouble"] == "nobody may listen here"


async def test_escapes_and_held_cells_are_told():
    """By kernel; null and without a sample where no log is read."""
    escapes = Escapes()
    escapes.add(
        Compile(Origin("EngineCore"), "Triton", "JIT", "moe", repeated=3),
        at=5.0,
        source="file:///a",
    )
    told = replace(READY, escapes=escapes.log, held=("a", "b"))
    values = await samples(told)
    assert values["warmup_jit_escapes_total", ("backend", "Triton"), ("kernel", "moe")] == 3
    assert values["warmup_held_cells",] == 2
    async with client(told) as http:
        body = (await http.get("/status")).json()
    assert body["held"] == ["a", "b"]
    assert body["escapes"]["total"] == 3
    assert body["escapes"]["recent"][0]["at"] == "1970-01-01T00:00:05Z"
    async with client(READY) as http:
        assert (await http.get("/status")).json()["escapes"] is None


async def test_metrics_warn_of_the_costly_settings():
    """CUDA graphs off, and a KV cache whose size was given."""
    name = "warmup_engine_costly_setting"
    for facts, off, given in (
        (REPORT.facts, 0, 0),
        (replace(REPORT.facts, cudagraphs_off=True, kv_cache_memory_bytes=1 << 30), 1, 1),
    ):
        values = await samples(replace(WARMING, engine=facts))
        assert values[name, ("setting", "cudagraphs_off")] == off
        assert values[name, ("setting", "kv_cache_memory_bytes")] == given


def test_labels_from_a_log_are_bounded():
    """The most frequent kernels; what no kernel is called, and all beyond, are counted together."""
    counts = {("Triton", f"k{n}"): n + 1 for n in range(2 * MAX_LABELS)}
    named = bounded({**counts, ("Triton", 'x"}\n evil'): 10_000})
    assert len(named) == MAX_LABELS
    assert sum(named.values()) == sum(counts.values()) + 10_000
    assert named["Triton", f"k{2 * MAX_LABELS - 1}"] == 2 * MAX_LABELS
    assert named["other", "other"] > 10_000
