"""Messages that say that a kernel is compiled, or tuned.

Triton's monitor line comes after its compile, CuTeDSL's and TileLang's before. DeepGEMM,
torch.compile's small graphs, FlashInfer before 0.7 and CUDA's module loads write nothing at all.
A CuTeDSL line is known word for word, but from reports only: no GPU that writes it was at hand.
"""

from sidecar.core.logs.events import Activated, Compile, Finished
from sidecar.core.logs.head import Message, Origin
from sidecar.core.wire.sse import one_line

MAX_DETAIL = 4000
"""Two specializations that differ only after so many characters pass for one."""
MAX_KERNEL = 200

AUTOTUNE = "autotune"
BUILD = "compile"
FLASHINFER = "FlashInfer"
TILELANG = "TileLang"
TRITON = "Triton"

_DURING = " during inference: "
_ACTIVATED = "Kernel JIT monitor activated"
_TAIL = " This causes a latency spike"
_MAX_HEAD = 80

_GRAPH = "Compiling a graph for "
_TUNING = "Autotuning kernel "
_TUNED = "Triton autotuning for function "
_AFTER = "finished after "
_RECOMPILING = "Recompiling function "


def monitored(message: Message) -> Compile | Activated | None:
    """Of vLLM's JIT monitor (0.21-0.24 triton_utils/jit_monitor.py, 0.25+ utils/jit_monitor.py)."""
    if message.text.startswith(_ACTIVATED):
        mode = message.text.partition("mode=")[2].rstrip(".")
        return Activated(message.origin, mode if mode.isalpha() and len(mode) <= 20 else None)
    return _during(message, message.text)


def _during(message: Message, text: str) -> Compile | None:
    """`BACKEND EVENT during inference: NAME[ (DETAIL)].[ This causes a latency spike…]`; 0.24's
    verbose line has no such tail."""
    at = text.find(_DURING, 0, _MAX_HEAD)
    head = text[:at] if at > 0 else ""
    backend, _, event = head.partition(" ")
    if not head.endswith("JIT compilation") or not backend.isalnum():
        return None
    if not head.replace(" ", "a").replace("/", "a").replace("-", "a").isalnum():
        return None
    body = text[at + len(_DURING) :]
    body = body.rpartition(_TAIL)[0] or body
    kernel, found, detail = body.rstrip(" .").partition(" (")
    return Compile(
        message.origin,
        backend,
        event,
        _name(kernel),
        one_line(detail.removesuffix(")"), MAX_DETAIL) if found else "",
        repeated=message.repeated,
    )


def graph(message: Message) -> Compile | None:
    """`Compiling a graph for compile range (1, 8192) takes 11.32 s` (vLLM 0.33
    compilation/backends.py), and mode=error's exception wherever its traceback stands."""
    text = message.text
    if text.startswith("RuntimeError: "):
        return _during(message, text.removeprefix("RuntimeError: "))
    if text.startswith("["):
        text = text.partition("] ")[2]
    if not text.startswith(_GRAPH):
        return None
    what, _, took = text[len(_GRAPH) :].partition(" takes ")
    return Compile(
        message.origin, "torch", "graph", _name(what), duration_s=_seconds(took.partition(" s")[0])
    )


def printed(message: Message) -> Compile | Finished | None:
    """Of what is no line of vLLM's logger: prints and foreign loggers."""
    text = message.text
    if text.startswith("20"):
        return _tilelang(message) or _flashinfer(message)
    if text.startswith((_TUNING, _TUNED, _AFTER)):
        return _triton(message)
    if "[__recompiles" in text[:300]:
        return _torch(message)
    if text.startswith("flashinfer.jit: "):
        return _building(message, text.removeprefix("flashinfer.jit: "), None)
    return _during(message, text.removeprefix("RuntimeError: "))


def _triton(message: Message) -> Compile | Finished | None:
    """triton 3.0-3.9 runtime/autotuner.py. The report of a tuned function is one line up to 3.2,
    then four: `Triton autotuning for function NAME,`, `with key as …,`, `finished after 1.23s,`
    and `best config selected: …;`."""
    text = message.text
    if text.startswith(_AFTER):
        took = _seconds(text[len(_AFTER) :].partition("s")[0])
        return None if took is None else Finished(message.origin, TRITON, AUTOTUNE, "", took)
    if text.startswith(_TUNING):
        kernel, found, config = text[len(_TUNING) :].partition(" with config ")
        if not found:
            return None
        detail = one_line(config, MAX_DETAIL)
        return Compile(message.origin, TRITON, "autotune candidate", _name(kernel), detail)
    body = text[len(_TUNED) :]
    kernel = body.partition(" ")[0].rstrip(",")
    took_text = body.partition(_AFTER)[2].partition("s")[0]
    return Compile(message.origin, TRITON, AUTOTUNE, _name(kernel), duration_s=_seconds(took_text))


def _tilelang(message: Message) -> Compile | Finished | None:
    """`2026-11-29 17:14:24  [TileLang:tilelang.jit.kernel:INFO] (kernel.py:133): TileLang begins
    to compile kernel `NAME` with `out_idx=None``; `completes` at its end, on every rank."""
    stamp, rest = message.text[:19], message.text[19:].lstrip(" ")
    if not rest.startswith("[TileLang:"):
        return None
    said = rest.partition(": ")[2]
    name = said.partition("`")[2].partition("`")[0]
    origin = _at(message, stamp)
    if said.startswith("TileLang begins to compile kernel `"):
        return Compile(origin, TILELANG, BUILD, _name(name))
    if said.startswith("TileLang completes to compile kernel `"):
        return Finished(origin, TILELANG, BUILD, _name(name))
    return None


def _flashinfer(message: Message) -> Compile | Finished | None:
    """`2026-11-29 16:20:19,991 - INFO - core.py:12 - flashinfer.jit: …` (flashinfer 0.6, 0.7)."""
    head, found, said = message.text.partition(" - flashinfer.jit: ")
    if not found or len(head) > 120 or " - " not in head:
        return None
    return _building(message, said, head.partition(" - ")[0])


def _building(message: Message, said: str, stamp: str | None) -> Compile | Finished | None:
    origin = _at(message, stamp) if stamp else message.origin
    for start, event in (
        ("Building JIT module ", "build"),
        ("Compiling CuTe-DSL kernel ", "CuTe-DSL"),
        ("Loading JIT ops: ", "load"),
    ):
        if said.startswith(start):
            name = said[len(start) :].partition(";")[0]
            return Compile(origin, FLASHINFER, event, _name(name.rstrip(". ")))
    if said.startswith("[Autotuner]: Autotuning process starts"):
        return Compile(origin, FLASHINFER, AUTOTUNE, "autotuner")
    if said.startswith("[Autotuner]: Autotuning process ends"):
        return Finished(origin, FLASHINFER, AUTOTUNE, "autotuner")
    return None


def _torch(message: Message) -> Compile | None:
    """`V1129 16:20:19.991000 797 torch/_dynamo/guards.py:2812] [0/1] [__recompiles] Recompiling
    function NAME in FILE:LINE` (TORCH_LOGS=recompiles; torch 2.13 _dynamo/guards.py)."""
    head, _, said = message.text.partition("[__recompiles")
    said = said.partition("] ")[2]
    if "torch/" not in head or not said.startswith(_RECOMPILING):
        return None
    name, _, where = said[len(_RECOMPILING) :].partition(" in ")
    file = one_line(where.rpartition("/")[2], MAX_KERNEL)
    return Compile(message.origin, "torch", "recompile", _name(name), file)


def _name(text: str) -> str:
    return one_line(text, MAX_KERNEL)


def _at(message: Message, stamp: str) -> Origin:
    return Origin(message.origin.process, message.origin.pid, stamp)


def _seconds(text: str) -> float | None:
    if len(text) > 20 or not (text.isascii() and text.replace(".", "", 1).isdigit()):
        return None
    return float(text)
