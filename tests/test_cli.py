"""The command line: what it prints, what it refuses, and with which exit code."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar.cli.main import main
from sidecar.cli.run import _Lines
from sidecar.core.errors import ExitCode
from sidecar.core.grid.cells import Gait
from sidecar.core.grid.cost import Speed
from sidecar.core.grid.shapes import parse
from sidecar.core.judge.passes import Progress
from sidecar.core.report import to_json, with_escapes
from sidecar.core.watch.deaths import Cause, Death, deaths_to_json
from sidecar.core.watch.escapes import Batch, Escape
from sidecar.core.watch.gate import Snapshot, State
from sidecar.settings import describe
from tests.core.test_report import REPORT

NOBODY = "http://127.0.0.1:1"
"""Port 1 (tcpmux) refuses."""

LIMIT_S = 60.0
"""Of one process, on a machine that is busy: `once` alone takes 10 s there."""


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine has set must not decide a test."""
    for name in list(os.environ):
        if name.startswith("WARMUP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def bad_shapes(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text("grid: {concurency: [1], prompt_tokens: [350]}\n")
    return str(path)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments],
        env={"PATH": os.environ["PATH"]} | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def code_of(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


REFUSED = [
    # arguments, exit code, what the one line on stderr must say
    (["bogus"], 2, "vllm-warmup: argument COMMAND: invalid choice: 'bogus'.*"),
    (
        ["plan", "--engin-url", "x"],
        2,
        r'.*no argument "--engin-url" here .did you mean "--engine-.*',
    ),
    (["plan", "extra"], 2, 'vllm-warmup plan: no argument "extra" here; .*'),
    (["plan", "--prefill-tokens-per-s", "0"], 2, '.*"0" is no number above 0; give one; .*'),
    (["plan", "--engine-url", "vllm:8000"], 2, ".*--engine-url: .* has no scheme; .*"),
    (["plan", "--shapes", "defualt"], 2, '.*no shapes file is called "defualt" .did you mean.*'),
    (["plan", "--shapes", "/nowhere/s.yaml"], 2, ".*/nowhere/s.yaml: can't be read .*"),
    (["plan", "--settings", "/nowhere/s"], 2, ".*the settings file /nowhere/s can't be read.*"),
    (["plan", "--api-key-file", "/nowhere/k"], 2, ".*the API key file /nowhere/k can't be read.*"),
    (["plan", "--engine-url", NOBODY], 4, f".*{NOBODY}.*"),
    (["serve", "--port", "x"], 2, '.*--port: "x" should be a valid integer.*'),
    (["serve", "--shapes", "defualt"], 2, '.*no shapes file is called "defualt".*'),
    (["once", "--shapes", "defualt"], 2, '.*no shapes file is called "defualt".*'),
    (["report"], 2, ".*no state folder is set; give --state-dir or WARMUP_STATE_DIR"),
    (["report", "--state-dir", "/nowhere"], 2, ".*no report in /nowhere.*"),
    (["report", "--suggest"], 2, ".*no state folder is set; give --state-dir or WARMUP_STATE_DIR"),
    (["state"], 2, ".*ACTION.*"),
    (["state", "show"], 2, ".*no state folder is set; give --state-dir or WARMUP_STATE_DIR"),
    (["state", "clear", "--state-dir", "/nowhere"], 2, ".*there is no state folder /nowhere.*"),
    (
        ["state", "show", "--stat-dir", "x"],
        2,
        'vllm-warmup state show: no argument "--stat-dir" .*"--state-dir".*',
    ),
    (["state", "show", "--state", "x"], 2, '.*no argument "--state" here.*'),
    (["shapes", "list", "x"], 2, 'vllm-warmup shapes list: no argument "x" here; .*'),
    (["shapes"], 2, ".*ACTION.*"),
    (["shapes", "suggest", "--watch", "x"], 2, '.*"x" is no number of seconds from 0 to 86400;.*'),
    (["shapes", "suggest", "--watch", "nan"], 2, '.*"nan" is no number of seconds.*'),
    (["shapes", "suggest", "--engine-url", "vllm:8000"], 2, ".*--engine-url: .* has no scheme; .*"),
    (["shapes", "suggest", "--shapes", "defualt"], 2, '.*no shapes file is called "defualt".*'),
    (["shapes", "suggest", "--engine-url", NOBODY], 4, f".*{NOBODY}.*"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_is_refused(
    arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake gets one line on stderr, nothing on stdout, and its exit code."""
    assert code_of(*arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(sentence + "\n", printed.err), printed.err


@pytest.mark.programs
def test_a_bad_file_from_the_outside(bad_shapes: str) -> None:
    """As a process: exit 2, one line with file and line, no traceback."""
    done = run("serve", "--shapes", bad_shapes)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.count("\n") == 1
    assert f"{bad_shapes}:1: unknown key" in done.stderr


@pytest.mark.programs
def test_an_unknown_variable_from_the_outside() -> None:
    """A misspelt variable ends the process before anything else happens."""
    done = run("serve", WARMUP_ENGINE_ULR="http://vllm:8000")
    assert done.returncode == ExitCode.CONFIG
    assert 'did you mean "WARMUP_ENGINE_URL"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.programs
def test_nobody_there_from_the_outside() -> None:
    """`once` against nothing: exit 4 after the start deadline, and what it waited for."""
    done = run("once", "--engine-url", NOBODY, "--start-deadline-s", "0.5", "--shapes", "tiny")
    assert done.returncode == ExitCode.ENGINE_UNAVAILABLE, done.stderr
    assert NOBODY in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_state_shows_and_clears_what_is_held_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cell, its cause and the flag; as JSON too; and after `clear` nothing."""
    death = Death("completions-c8-p64-o16", Gait.HELD, 5.0, NOBODY, "m", "1", Cause.OUT_OF_MEMORY)
    (tmp_path / "deaths.json").write_text(deaths_to_json((death,)))
    folder = ("--state-dir", str(tmp_path))
    assert code_of("state", "show", *folder) == 0
    assert "completions-c8-p64-o16 is held back" in capsys.readouterr().out
    assert code_of("state", "show", "--json", *folder) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["deaths"][0]["cause"], told["in_flight"]) == ("out of memory", None)
    assert code_of("state", "clear", *folder) == 0
    assert "cleared" in capsys.readouterr().out
    assert code_of("state", "show", *folder) == 0
    assert capsys.readouterr().out == "no cell is held back\n"
    (tmp_path / "deaths.json").write_text("[")
    assert code_of("state", "show", *folder) == 2
    assert "is damaged" in capsys.readouterr().err


def test_report_suggests_cells_for_what_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML that a shapes file takes, the same as JSON, and one sentence where nothing escaped."""
    report = replace(REPORT, escapes=(), escapes_total=0)
    path = tmp_path / "last-report.json"
    path.write_text(to_json(report))
    command = ("report", "--suggest", "--state-dir", str(tmp_path))
    assert code_of(*command) == 0
    assert capsys.readouterr().out.startswith("# nothing to suggest: ")
    line = Escape(5.0, "a", "Triton", "", "moe", "", None, batch=Batch(1, 513, 0, 0))
    path.write_text(to_json(with_escapes(report, [line])))
    assert code_of(*command) == 0
    (cell,) = parse(capsys.readouterr().out, "pasted").cells
    assert cell.prompt_tokens == 513
    assert code_of(*command, "--json") == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["cell"]["prompt_tokens"] == 513
    path.write_text("{}")
    assert code_of(*command) == 2
    assert "not a report of this version" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """--version says the version; each command's help has examples and is readable."""
    assert code_of("--version") == 0
    assert capsys.readouterr().out == f"vllm-warmup {__version__}\n"
    for command in ("serve", "once", "plan", "report", "state", "shapes", "sim"):
        assert code_of(command, "--help") == 0
        out = capsys.readouterr().out
        assert f"examples:\n  vllm-warmup {command} " in out
        assert all(len(line) <= 100 for line in out.splitlines())
    assert code_of() == 0
    assert "exit codes:" in capsys.readouterr().out


def test_the_help_of_serve_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever mistyped a variable is sent there: each is a flag, or is told by its name."""
    assert code_of("serve", "--help") == 0
    out = capsys.readouterr().out
    for setting in describe():
        flag = setting.name.removeprefix("WARMUP_").lower().replace("_", "-")
        assert f"-{flag} " in out or f"-{flag}\n" in out or setting.name in out, setting.name


def test_a_bug_shows_its_traceback_where_no_flag_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`shapes list` has no --log-level; `plan` has, and says so in one line, with exit code 1."""
    monkeypatch.setattr(sys, "stdout", None)
    assert code_of("plan", "--shapes", "tiny") == ExitCode.BUG
    assert "run it with --log-level debug" in capsys.readouterr().err
    with pytest.raises(AttributeError):
        code_of("shapes", "list")


def test_plan_prints_cells_costs_and_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell with gaits and tokens, totals, seconds with their assumptions, and reasons."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "on_unfit: skip\n"
        "engine: {max_num_seqs: 8, max_num_batched_tokens: 1000, max_model_len: 4000}\n"
        "cells:\n- {concurrency: 4, prompt_tokens: 250, output_tokens: 9}\n"
        "- {concurrency: 9, prompt_tokens: 5}\n"
        "heaviest: {prompt_tokens: 3000, output_tokens: 20}\n"
    )
    arguments = ["plan", "--shapes", str(path), "--prefill-tokens-per-s", "1000"]
    assert code_of(*arguments, "--decode-tokens-per-s", "10") == 0
    out = capsys.readouterr().out
    assert re.search(r"completions-c1-p2000-o1-high_water +led +1 +1 +2,000 +1 +2.1\n", out)
    # led 1,000 tokens and 9 steps; held the same and a plug of 1,000
    assert re.search(r"completions-c4-p250-o9 +led \+ held +2 +9 +3,000 +73 +4.8\n", out)
    assert re.search(r"completions-c1-p3000-o20-heaviest +led +1 +1 +3,000 +20 +5.0\n", out)
    assert "a pass: 2 waves, 9 requests, 3,000 prompt and 73 output tokens" in out
    assert "adds about 22 s to a scale-out" in out  # 2.1 + 3 × 4.8 + 5.0
    assert "does not fit: completions-c9-p5-o16: concurrency 9 is above max_num_seqs 8" in out

    assert code_of(*arguments, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [c["gaits"] for c in made["cells"]] == [["led"], ["led", "held"], ["led"]]
    assert made["cost"]["a_pass"]["requests"] == 9
    assert made["unfit"][0]["remedy"].startswith("start vLLM with --max-num-seqs 9")


def test_plan_takes_the_speeds_of_the_last_warm_up_and_says_what_the_budget_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured where a report has them, assumed where not, typed above all; never refused."""
    shapes = tmp_path / "s.yaml"
    shapes.write_text(
        "budget: {total_s: 100}\ncells: [{prompt_tokens: 10000, output_tokens: 100}]\n"
    )
    command = ["plan", "--shapes", str(shapes), "--state-dir", str(tmp_path)]
    assert code_of(*command) == 0
    out = capsys.readouterr().out
    assert "at the assumed 8,000 prompt tokens/s and 50 output tokens/s" in out
    assert "the budget is" not in out
    report = replace(REPORT, speed=Speed(500.0, 10.0, 0.5))
    (tmp_path / "last-report.json").write_text(to_json(report))
    assert code_of(*command) == 0
    out = capsys.readouterr().out
    measured = (
        rf"500 prompt tokens/s and 10 output tokens/s a stream, measured on .* at {report.url}"
    )
    assert re.search(rf"adds about 112 s to a scale-out: .* at {measured}", out), out
    assert re.search(rf"warning: the grid needs about 112 s in 3 passes at {measured}", out)
    assert "the budget is 100 s: raise budget.total_s" in out
    assert code_of(*command, "--prefill-tokens-per-s", "10000", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["speed"]["prefill_tokens_per_s"], made["speed"]["decode_tokens_per_s"]) == (
        10000,
        10,
    )
    assert made["warnings"] == [w for w in made["warnings"] if "the budget is" not in w]


@pytest.mark.programs
def test_one_engine_of_several_has_to_be_named(tmp_path: Path) -> None:
    """`shapes suggest` asks one; its report is found in its own folder."""
    both = {"WARMUP_ENGINE_URLS": f"a={NOBODY} b=http://127.0.0.1:2"}
    asked = run("shapes", "suggest", "--watch", "0", **both)
    assert asked.returncode == ExitCode.CONFIG
    assert "WARMUP_ENGINE_URLS names several servers (a, b), and one is asked here" in asked.stderr
    assert asked.stderr.count("\n") == 1
    (tmp_path / "a").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "last-report.json").write_text("{")
    report = replace(REPORT, speed=Speed(500.0, 10.0))
    (tmp_path / "a" / "last-report.json").write_text(to_json(report))
    planned = run("plan", "--shapes", "tiny", "--state-dir", str(tmp_path), **both)
    assert "500 prompt tokens/s" in planned.stdout, planned


def test_plan_counts_the_requests_of_all_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the rows and in the total, with how many there are; the seconds are those of one."""
    path = tmp_path / "s.yaml"
    path.write_text("ranks: [0, 1]\ncells: [{prompt_tokens: 800, output_tokens: 1}]\n")
    assert code_of("plan", "--shapes", str(path)) == 0
    out = capsys.readouterr().out
    assert "a pass: 2 waves, 2 requests, 1,600 prompt and 2 output tokens, of 2 data-par" in out
    assert re.search(r"-c1-p800-o1 +led +2 +2 +1,600 +2 +0\.1\n", out)


def test_plan_of_an_unfit_grid_is_printed_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `on_unfit: fail` the plan is shown, the reason said, and the exit code is 2."""
    path = tmp_path / "s.yaml"
    path.write_text("engine: {max_num_seqs: 8}\ncells: [{concurrency: 9, prompt_tokens: 5}]\n")
    assert code_of("plan", "--shapes", str(path)) == ExitCode.CONFIG
    printed = capsys.readouterr()
    assert "does not fit: completions-c9-p5-o" in printed.out
    assert "concurrency 9 is above max_num_seqs 8" in printed.err
    assert printed.err.count("\n") == 1


def test_shapes_check_looks_at_every_file(
    bad_shapes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong file doesn't hide the next one; the exit code tells that one was wrong."""
    assert code_of("shapes", "check", "tiny") == 0
    capsys.readouterr()
    assert code_of("shapes", "check", bad_shapes, "tiny") == ExitCode.CONFIG
    printed = capsys.readouterr()
    assert f"{bad_shapes}:1: unknown key" in printed.err
    assert "tiny: good: 4 cells" in printed.out


def test_shapes_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """What `shapes schema` prints is the schema file."""
    assert code_of("shapes", "schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "vllm-warmup shapes"


def test_progress_lines_say_each_thing_once() -> None:
    """Not a line for each wave: one for a pass, a fifth of the cells, or another state."""
    lines: list[str] = []
    view = _Lines(lines.append)
    waiting = Snapshot(url=NOBODY, state=State.WAITING, since=0, reasons=("no answer",))

    def warming(passes: int, done: int, left: int) -> Snapshot:
        progress = Progress(passes, done, 20, left)
        return Snapshot(url=NOBODY, state=State.WARMING, since=0, progress=progress)

    view.show(waiting)
    view.show(waiting)
    for done in range(6):
        view.show(warming(1, done, 9 - done))
    view.show(warming(2, 5, 1))
    assert lines == [
        "waiting: no answer",
        "warming: pass 1, 0 of 20 cells done, at least 9 waves to go",
        "warming: pass 1, 4 of 20 cells done, at least 5 waves to go",
        "warming: pass 2, 5 of 20 cells done, at least 1 wave to go",
    ]


@contextmanager
def sim(*arguments: str) -> Iterator[str]:
    """`vllm-warmup sim` as a process on a free port; its URL."""
    command = [sys.executable, "-m", "sidecar", "sim", "--port", "0", "--time-scale", "0.1"]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        found = (re.search(r"Starting vLLM server on (http://\S+)", s) for s in process.stdout)
        url = next(match[1] for match in found if match)
        # Read on: an engine whose log fills the pipe stands still.
        rest = threading.Thread(target=deque, args=(process.stdout, 0), daemon=True)
        rest.start()
        try:
            yield url
        finally:
            process.terminate()
            assert process.wait(LIMIT_S) == 0
            rest.join(LIMIT_S)


@pytest.mark.programs
@pytest.mark.timeout(300)
def test_once_against_the_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole: `sim` serves, `plan` asks it, `once` warms it and exits 0, `report` repeats it;
    `once` again adopts the verdict, sends nothing and prints the same report. `shapes suggest`
    tells our own requests from those of users, where it is shown the report."""
    with sim("--model", "demo") as url:
        suggest = ("shapes", "suggest", "--engine-url", url, "--watch", "0")
        nothing = run(*suggest)
        asked = run("plan", "--engine-url", url, "--shapes", "tiny")
        assert "model demo (/v1/models)" in asked.stdout, asked
        done = run(
            *("once", "--engine-url", url, "--shapes", "tiny", "--json"),
            *("--state-dir", str(tmp_path)),
        )
        adopted = run(
            *("once", "--engine-url", url, "--shapes", "tiny", "--json"),
            *("--state-dir", str(tmp_path)),
        )
        ours = run(*suggest, "--state-dir", str(tmp_path))
        all_of_it = run(*suggest, "--shapes", "tiny")
    assert (nothing.returncode, nothing.stdout) == (ExitCode.EVIDENCE_MISSING, "")
    assert "it has answered no request yet, so" in nothing.stderr
    assert ours.returncode == ExitCode.EVIDENCE_MISSING, ours
    assert "no request yet beside" in ours.stderr
    assert parse(all_of_it.stdout, "suggested.yaml").cells, all_of_it
    assert "# Beside tiny" in all_of_it.stdout
    assert done.returncode == ExitCode.WARM, done
    warmed = json.loads(done.stdout)
    assert (warmed["facts"]["model"], warmed["opening"]["open"]) == ("demo", True)
    assert "warming: pass 1, 0 of 5 cells done" in done.stderr
    assert "adopted: " in adopted.stderr
    assert (adopted.returncode, json.loads(adopted.stdout)) == (ExitCode.WARM, warmed)
    assert code_of("report", "--state-dir", str(tmp_path)) == 0
    assert "completions-c1-p350-o8" in capsys.readouterr().out
    assert code_of("report", "--state-dir", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out) == warmed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "x"], '.*"x" is no whole number from 0 to 65535; give one.*'),
        (["--time-scale", "0"], '.*"0" is no number above 0; give one.*'),
        (["--rules", "/nowhere/r"], ".*rules file /nowhere/r can't be read .*; correct the path"),
        (["--rules", "/dev/zero"], "vllm-warmup: /dev/zero: longer than 200,000 characters"),
        (["--port", "0" * 20 + "9"], ".* is no whole number from 0 to 65535; give one.*"),
        (["--log-file", "/nowhere/l"], ".*log file /nowhere/l.*"),
    ],
)
def test_bad_arguments_of_sim(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each gets one line and exit 2."""
    assert code_of("sim", *arguments) == ExitCode.CONFIG
    assert re.fullmatch(sentence + "\n", capsys.readouterr().err)


@pytest.mark.programs
def test_heavy_modules_are_imported_by_the_command_that_needs_them() -> None:
    """`--help` is at once: neither pydantic nor the web server is imported for it."""
    script = "import sys; import sidecar.cli.main as c; c.parser_of_all(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout.split()
    assert not {"pydantic", "fastapi", "uvicorn", "httpx", "rich", "yaml"} & set(loaded)
