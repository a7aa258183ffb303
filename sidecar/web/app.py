"""The routes. Handlers of a few lines over one snapshot; nothing here decides."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from sidecar import __version__
from sidecar.core.watch.gate import Snapshot
from sidecar.core.watch.reasons import ASK_AGAIN_S, retry_after_s
from sidecar.web.pages import Page
from sidecar.web.views import Alive, Problem, Ready, Status, ready_of, status_of
from sidecar.web.waiting import MAX_WAIT_S, MAX_WAITERS, Crowded, Waiting

_FRESH = {"Cache-Control": "no-store"}
"""A probe through a proxy must not meet yesterday's answer."""

_SHOWN = 40
"""Characters of what somebody typed that are repeated to him."""

_WAIT = Query(
    gt=0,
    le=MAX_WAIT_S,
    description=f"Seconds to wait for the gate to open, at most {MAX_WAIT_S}; the answer comes as "
    "soon as it does, or when the time is up or the sidecar stops.",
)

_RETRY_AFTER = {
    "Retry-After": {
        "description": "Whole seconds until asking again makes sense.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 300},
    }
}
_READY_ANSWERS: dict[int | str, dict[str, Any]] = {
    503: {
        "model": Ready,
        "description": "The gate is shut; `reasons` says why and what to do. Also where "
        f"{MAX_WAITERS} requests wait already: then at once.",
        "headers": _RETRY_AFTER,
    },
    422: {"model": Problem, "description": "`wait` is no number of seconds that can be waited."},
}
_NO_ENGINE: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "No engine has this name."}
}
_BUSY: dict[int | str, dict[str, Any]] = {
    503: {
        "model": Problem,
        "description": "Too many ask for it at once.",
        "headers": _RETRY_AFTER,
    }
}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Prometheus text",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    },
    **_BUSY,
}


def create_app(
    snapshot_of_now: Callable[[], Snapshot],
    *,
    waiting: Waiting | None = None,
    closed: Callable[[], Mapping[str, int]] = dict,
) -> FastAPI:
    """The app around whoever has the snapshot. `waiting` has to hear of its changes; `closed`
    counts connections that were closed on us, by reason."""
    app = FastAPI(
        title="vLLM warm-up sidecar",
        version=__version__,
        summary="Opens its gate when the declared grid of a vLLM server is warm.",
        docs_url=None,
        redoc_url=None,
    )
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(HTTPException, _problem)

    _add_gates(app, snapshot_of_now, waiting or Waiting(snapshot_of_now))
    _add_pages(app, snapshot_of_now, closed)
    return app


def _get(app: FastAPI, path: str, **route: Any) -> Callable[[Callable[..., Any]], None]:
    """GET and HEAD: load balancers probe with either."""

    def add(handler: Callable[..., Any]) -> None:
        app.get(path, **route)(handler)
        app.head(path, include_in_schema=False, response_model=None)(handler)

    return add


def _add_gates(app: FastAPI, snapshot_of_now: Callable[[], Snapshot], waiters: Waiting) -> None:
    @_get(app, "/health", response_model=Alive)
    async def health() -> Response:
        """200 while the process lives: for liveness probes."""
        return _line(Alive())

    @_get(app, "/startup", response_model=Alive)
    async def startup() -> Response:
        """200 once configuration and server are good; it never waits for the engine."""
        return _line(Alive())

    async def gate(
        request: Request, wait: float | None, view: Callable[[Snapshot], Snapshot]
    ) -> Response:
        snapshot, crowded = view(snapshot_of_now()), False
        if wait is not None and not snapshot.is_ready:
            try:
                snapshot = await waiters.until_ready(wait, gone=_leaving(request), view=view)
            except Crowded:
                crowded = True
        return _answer(snapshot, crowded=crowded)

    @_get(app, "/ready", response_model=Ready, responses=_READY_ANSWERS)
    async def ready(request: Request, wait: Annotated[float | None, _WAIT] = None) -> Response:
        """200 while the gate is open, else 503: for readiness probes. One line of JSON."""
        return await gate(request, wait, lambda snapshot: snapshot)

    @_get(app, "/ready/{engine}", response_model=Ready, responses=_READY_ANSWERS | _NO_ENGINE)
    async def ready_of_one(
        request: Request, engine: str, wait: Annotated[float | None, _WAIT] = None
    ) -> Response:
        """The same of one of several engines, by its name."""
        _known(engine, snapshot_of_now())
        return await gate(request, wait, lambda snapshot: snapshot.parts[engine])


def _add_pages(
    app: FastAPI,
    snapshot_of_now: Callable[[], Snapshot],
    closed: Callable[[], Mapping[str, int]],
) -> None:
    # Large grids take their time: these two are rendered in a thread, one at a time.
    status_page = Page(snapshot_of_now, lambda snapshot: _bytes(status_of(snapshot)))

    @_get(app, "/status", response_model=Status, responses=_BUSY)
    async def status() -> Response:
        """The full snapshot: every cell with its waves."""
        page = await status_page.of_now()
        return _crowded() if page is None else _page(page, "application/json")

    metrics_page = Page(lambda: (snapshot_of_now(), closed()), lambda now: _metrics(*now))

    @_get(app, "/metrics", response_class=Response, responses=_METRICS)
    async def metrics() -> Response:
        """For Prometheus."""
        page = await metrics_page.of_now()
        if page is None:
            return _crowded()
        from sidecar.exposition import CONTENT_TYPE  # by now its thread has imported it

        return _page(page, CONTENT_TYPE)


def _known(engine: str, snapshot: Snapshot) -> None:
    if engine not in snapshot.parts:
        names = ", ".join(snapshot.parts) or "none: there is one engine, ask /ready"
        raise HTTPException(404, f"{engine[:_SHOWN]!a} is no engine of this sidecar ({names})")


def _answer(snapshot: Snapshot, *, crowded: bool) -> Response:
    body = ready_of(snapshot)
    if snapshot.is_ready:
        return _line(body)
    if crowded:
        why = f"{MAX_WAITERS} requests wait for this gate already: ask without wait"
        body = body.model_copy(update={"reasons": (*body.reasons, why)})
    return _line(body, 503, {"Retry-After": str(retry_after_s(snapshot))})


def _leaving(request: Request) -> Callable[[], Awaitable[None]]:
    """Returns once whoever asked has closed the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


def _metrics(snapshot: Snapshot, closed: Mapping[str, int]) -> bytes:
    # `serve` answers its first probe before this is imported.
    from sidecar.exposition import render

    return render(snapshot, closed)


def _crowded() -> Response:
    problem = Problem(detail="too many ask for this page at once; ask again")
    return _line(problem, 503, {"Retry-After": str(ASK_AGAIN_S)})


def _page(body: bytes, content_type: str) -> Response:
    return Response(body, headers={**_FRESH, "Content-Type": content_type})


def _line(
    body: BaseModel, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """One line, its end included: for people with curl, and for scripts that read lines."""
    return Response(
        _bytes(body), status_code, {**_FRESH, **(headers or {})}, media_type="application/json"
    )


def _bytes(body: BaseModel) -> bytes:
    return body.model_dump_json(by_alias=True).encode() + b"\n"


async def _refuse(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    given = str(problem.errors()[0].get("input"))[:_SHOWN]
    return _line(Problem(detail=f"wait={given!a}: give seconds above 0, at most {MAX_WAIT_S}"), 422)


async def _problem(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return _line(Problem(detail=str(problem.detail)), problem.status_code, problem.headers)
