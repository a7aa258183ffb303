"""What the log of one wave proves."""

from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.logs.events import Compile, LogEvent
from sidecar.core.logs.lines import Lines
from sidecar.core.logs.parse import fence_target, parse
from sidecar.core.logs.reader import LogReader
from sidecar.core.logs.window import (
    MAX_KEPT,
    Completeness,
    Expected,
    Fences,
    Window,
    WindowReport,
)

LOGS = Path(__file__).parent.parent / "data" / "logs"
FENCES = Fences("open1", "close1")
PATH = "/v1/completions"
EXPECTED = (Expected(PATH, 2),)


def event(line: str) -> LogEvent:
    found = parse(line)
    assert found is not None, line
    return found


def answer(target: str, method: str = "POST") -> LogEvent:
    return event(f'INFO:     127.0.0.1:1 - "{method} {target} HTTP/1.1" 200 OK')


def fence(nonce: str) -> LogEvent:
    return answer(fence_target(nonce), "GET")


def compiled(kernel: str = "k") -> LogEvent:
    return event(f"Triton kernel JIT compilation during inference: {kernel}.")


def step(number: int, *, dummy: bool = False) -> LogEvent:
    return event(
        f"INFO 11-29 17:16:31 [loggers.py:182] Engine 000: Iteration({number}): 2 context "
        "requests, 700 context tokens, 0 generation requests, 0 generation tokens, iteration "
        f"elapsed time: 0.04 ms{' (dummy)' if dummy else ''}, GPU KV cache usage: 0.0%"
    )


OPEN, CLOSE, OURS = fence("open1"), fence("close1"), answer(PATH)


def seen(*items: LogEvent | str, lossless: bool = True) -> WindowReport:
    """Of events, and of what was missed, in words."""
    window = Window(FENCES, EXPECTED, lossless=lossless)
    for item in items:
        if isinstance(item, str):
            window.miss(item)
        else:
            window.feed(item)
    return window.report()


def test_a_complete_window_has_both_fences_and_the_waves_answers() -> None:
    """Only then does its silence count."""
    report = seen(OPEN, OURS, OURS, CLOSE)
    assert (report.completeness, report.reason) == (Completeness.COMPLETE, "")
    assert report.compiles == ()


def test_a_window_holds_what_was_written_between_its_fences() -> None:
    """Compiles, steps without dummies; what came before and after belongs to others."""
    report = seen(
        *(compiled("before"), step(1), OPEN, OURS, step(2), step(3, dummy=True)),
        *(OURS, compiled("mine"), CLOSE, compiled("after")),
    )
    assert report.completeness is Completeness.COMPLETE
    assert [each.kernel for each in report.compiles] == ["mine"]
    assert [each.number for each in report.steps] == [2]


@pytest.mark.parametrize(
    ("items", "completeness", "reason"),
    [
        ((), Completeness.NONE, "no line was seen"),
        ((OURS, OURS), Completeness.NONE, "no fence was seen"),
        ((OURS, OURS, CLOSE), Completeness.PARTIAL, "opening fence was not seen"),
        ((CLOSE, OPEN, OURS, OURS), Completeness.PARTIAL, "opening fence was not seen"),
        ((OPEN, OURS, OURS), Completeness.PARTIAL, "closing fence was not seen"),
        ((OPEN, OURS, CLOSE), Completeness.PARTIAL, "1 of 2 access lines of /v1/completions"),
        (
            (OPEN, OURS, "reconnected after 3.2 s", OURS, CLOSE),
            *(Completeness.PARTIAL, "reconnected after 3.2 s"),
        ),
        (
            (
                *(OPEN, OURS, OURS),
                event("INFO 11-29 17:16:31 [a.py:1] non-default args: {'model': 'x'}"),
                CLOSE,
            ),
            *(Completeness.PARTIAL, "started anew"),
        ),
    ],
)
def test_what_was_missed_is_named(
    items: tuple[LogEvent | str, ...], completeness: Completeness, reason: str
) -> None:
    """A window that is not complete says why."""
    report = seen(*items)
    assert report.completeness is completeness
    assert reason in report.reason


def test_a_gap_before_the_fence_is_no_gap_of_the_wave() -> None:
    """A source may come back between two waves."""
    assert seen("reconnected", OPEN, OURS, OURS, CLOSE).reason == ""


def test_a_lossy_source_is_never_complete() -> None:
    """Silence over UDP is no silence of the engine."""
    report = seen(OPEN, OURS, compiled(), OURS, CLOSE, lossless=False)
    assert report.completeness is Completeness.PARTIAL
    assert len(report.compiles) == 1, "but what it brought counts"


def test_without_the_nonce_nothing_is_proved() -> None:
    """A forged log, complete but for the nonces, strengthens nothing; its compiles still count."""
    for nonce in ("open2", "", "OPEN1", "open1x"):
        forged = answer(fence_target(nonce), "GET")
        report = seen(forged, OURS, OURS, answer(fence_target("close2"), "GET"))
        assert report.completeness is Completeness.NONE
    used = seen(fence("close1"), fence("open1"))
    assert used.completeness is Completeness.PARTIAL
    assert len(seen(compiled("forged")).compiles) == 1


def test_a_copied_fence_opens_nothing_anew() -> None:
    """Whoever repeats the opening fence inside the window can't wipe a compile out of it."""
    report = seen(OPEN, OURS, OURS, compiled(), OPEN, CLOSE)
    assert len(report.compiles) == 1


def test_somebody_elses_requests_are_counted() -> None:
    """More answers than the wave's own, and answers to other paths; reads and what was refused are
    nobody's work."""
    report = seen(
        *(OPEN, OURS, OURS, OURS, answer("/v1/chat/completions"), answer("/v1/embeddings")),
        *(answer("/health", "GET"), answer("/v1/models", "GET"), answer("/tokenize")),
        *(replace(each, status=401) for each in (answer("/v1/embeddings"), OURS)),
        CLOSE,
    )
    assert report.foreign == 3
    assert report.completeness is Completeness.COMPLETE


def test_a_root_path_before_the_waves_path_is_no_other_path() -> None:
    """`--root-path /llm`, and a gateway that keeps it."""
    behind = answer(f"/llm{PATH}")
    assert seen(OPEN, behind, behind, CLOSE).completeness is Completeness.COMPLETE


def test_a_window_is_bounded() -> None:
    """A verbose kernel may compile for every prompt length."""
    window = Window(FENCES, EXPECTED)
    window.feed(OPEN)
    for _ in range(MAX_KEPT + 5):
        window.feed(compiled())
    assert len(window.report().compiles) == MAX_KEPT
    assert window.report().dropped == 5
    assert not window.is_closed
    window.feed(CLOSE)
    assert window.is_closed


def test_a_real_cold_wave_fenced() -> None:
    """Fences put around each wave of a real log (vLLM 0.26.0): one wave compiled, one step held
    four prompts behind a plug, and the others are quiet."""
    reader = LogReader()
    texts = Lines().feed((LOGS / "gpu-0.26.0-steps.log").read_bytes())
    events = [found for text in texts if (found := reader.feed(text)) is not None]
    reports = []
    window: Window | None = None
    for found in events:
        is_wave_start = getattr(found, "path", "") == "/version"
        if is_wave_start and (window is None or window.report().steps):
            if window is not None:
                window.feed(CLOSE)
                reports.append(window.report())
            window = Window(FENCES, (Expected(PATH, 1),))
            window.feed(OPEN)
        if window is not None:
            window.feed(found)
    cold = [report for report in reports if report.compiles]
    assert len(reports) > 8
    assert all(report.completeness is Completeness.COMPLETE for report in reports)
    assert [[each.kernel for each in report.compiles] for report in cold] == [
        ["fused_moe_kernel"] * 2
    ]
    held = [
        s for r in reports for s in r.steps if (s.context_requests, s.context_tokens) == (2, 700)
    ]
    assert held, "2 × 350 behind a plug ran as one step"
    assert isinstance(cold[0].compiles[0], Compile)
