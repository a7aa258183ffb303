"""A message → an event. The wordings of vLLM 0.21-0.33, Triton, TileLang, FlashInfer and torch.

Everything is anchored at the start of the message, and where vLLM's logger named the source file,
that must be the right one too: each line of a multi-line message carries the head of the message
(vLLM logging_utils/formatter.py), whoever wrote the text.
"""

from sidecar.core.logs.compiles import graph, monitored, printed
from sidecar.core.logs.events import Access, Complaint, LogEvent, Phase, Started, Step, Trouble
from sidecar.core.logs.head import Message, split
from sidecar.core.logs.startlines import starting
from sidecar.core.wire.sse import one_line

FENCE_PATH = "/version"
FENCE_QUERY = "warmup_fence="
MAX_NONCE = 64

_MAX_PATH = 200
_MAX_TROUBLE = 300

_COMPLAINTS = (
    ("No available shared memory broadcast block found", Complaint.STALLED),
    ("TimeoutError: RPC call to ", Complaint.STEP_TIMEOUT),
    ("torch.OutOfMemoryError", Complaint.OUT_OF_MEMORY),
    ("torch.cuda.OutOfMemoryError", Complaint.OUT_OF_MEMORY),
    ("CUDA out of memory", Complaint.OUT_OF_MEMORY),
    ("HIP out of memory", Complaint.OUT_OF_MEMORY),
    ("RuntimeError: CUDA out of memory", Complaint.OUT_OF_MEMORY),
    ("RuntimeError: CUDA error: out of memory", Complaint.OUT_OF_MEMORY),
    ("torch.AcceleratorError: CUDA error: out of memory", Complaint.OUT_OF_MEMORY),
    ("RuntimeError: Triton Error [CUDA]: out of memory", Complaint.OUT_OF_MEMORY),
    ("RuntimeError: Worker failed with error 'CUDA out of memory", Complaint.OUT_OF_MEMORY),
    ("Worker proc ", Complaint.WORKER_DIED),
    ("RayWorkerProc rank=", Complaint.WORKER_DIED),
    ("EngineCore encountered", Complaint.ENGINE_DEAD),
    ("EngineDeadError", Complaint.ENGINE_DEAD),
    ("vllm.v1.engine.exceptions.EngineDeadError", Complaint.ENGINE_DEAD),
    ("Engine core proc ", Complaint.ENGINE_DEAD),
)
"""vLLM 0.33 distributed/device_communicators/shm_broadcast.py, v1/executor/multiproc_executor.py,
v1/engine/{core,core_client,exceptions}.py; torch's own words."""
_COMPLAINING = tuple(start for start, _ in _COMPLAINTS)
_DIES = ("Worker proc ", "RayWorkerProc rank=", "Engine core proc ")
"""Lines that begin so complain only if they go on with `died unexpectedly`."""


def parse(line: str, prefix: str = "") -> LogEvent | None:
    """What one line tells by itself, or None. `prefix`: VLLM_LOGGING_PREFIX."""
    return read(split(line, prefix))


def read(message: Message) -> LogEvent | None:
    """What one message tells by itself, or None."""
    if message.place is None:
        return _access(message) or _uvicorn(message) or printed(message) or _trouble(message)
    if message.place == "loggers.py":
        return _step(message)
    if message.place == "jit_monitor.py":
        return monitored(message)
    return starting(message) or graph(message) or _stopping(message) or _trouble(message)


def fence_target(nonce: str) -> str:
    """What to GET so that the server writes `nonce` into its access log."""
    return f"{FENCE_PATH}?{FENCE_QUERY}{nonce}"


def _access(message: Message) -> Access | None:
    """`INFO:     ip:port - "POST /v1/completions HTTP/1.1" 200 OK`; over a Unix socket there is
    no address, and in JSON neither the level nor the phrase."""
    text = message.text
    if text.startswith("INFO:"):
        text = text[5:].lstrip(" ")
    client, found, rest = text.partition('- "')
    if not found or " " in client[:-1]:
        return None
    request, found, status = rest.partition('" ')
    method, _, target = request.partition(" ")
    target, found, protocol = target.partition(" ")
    if not found or not protocol.startswith("HTTP/") or not method.isupper():
        return None
    code = status[:3]
    if not (code.isascii() and code.isdigit()) or status[3:4] not in ("", " "):
        return None
    path, _, query = target.partition("?")
    nonce = None
    if query.startswith(FENCE_QUERY) and path.endswith(FENCE_PATH):
        nonce = query[len(FENCE_QUERY) :]
        nonce = nonce if 0 < len(nonce) <= MAX_NONCE and nonce.isalnum() else None
    return Access(message.origin, method, path[:_MAX_PATH], int(code), nonce)


def _uvicorn(message: Message) -> Started | None:
    text = message.text
    if text.startswith("INFO:"):
        text = text[5:].lstrip(" ")
    if text == "Application startup complete.":
        return Started(message.origin, Phase.SERVING)
    return None


def _step(message: Message) -> Step | None:
    """vLLM 0.33 v1/metrics/loggers.py, log_iteration_details."""
    head, found, body = message.text.partition("): ")
    engine, _, number = head.partition(": Iteration(")
    fields = body.split(", ", 5)
    if not found or len(fields) < 5 or not engine.startswith("Engine "):
        return None
    took, unit, after = fields[4].removeprefix("iteration elapsed time: ").partition(" ms")
    if not unit or not fields[0].endswith(" context requests"):
        return None
    try:
        counts = [_count(field.partition(" ")[0]) for field in fields[:4]]
        return Step(
            message.origin,
            engine=_count(engine[7:]),
            number=_count(number),
            context_requests=counts[0],
            context_tokens=counts[1],
            generation_requests=counts[2],
            generation_tokens=counts[3],
            elapsed_ms=float(took[:20]),
            is_dummy="(dummy)" in after,
        )
    except ValueError:
        return None


def _count(text: str) -> int:
    """Raises ValueError for what vLLM never writes."""
    if len(text) > 12 or not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _stopping(message: Message) -> Trouble | None:
    """Of the signal handler, and of nothing else (vLLM 0.32 entrypoints/launchers/launcher.py)."""
    wanted = "[shutdown] API server: shutdown triggered"
    if message.place != "launcher.py" or message.text != wanted:
        return None
    return Trouble(message.origin, Complaint.STOPPING, message.text)


def _trouble(message: Message) -> Trouble | None:
    text = message.text
    if not text.startswith(_COMPLAINING):
        return None
    if text.startswith(_DIES) and "died unexpectedly" not in text[:_MAX_TROUBLE]:
        return None
    complaint = next(what for start, what in _COMPLAINTS if text.startswith(start))
    return Trouble(message.origin, complaint, one_line(text, _MAX_TROUBLE))
