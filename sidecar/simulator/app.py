"""The routes of a simulated vLLM, and what each answers."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace

import anyio
from pydantic import ValidationError

from sidecar.simulator import tokenizer
from sidecar.simulator.bodies import Refusal, chat_ids, check_model, invalid, read_json
from sidecar.simulator.describe import model_cards, openapi, server_info
from sidecar.simulator.faults import Knobs
from sidecar.simulator.generate import generate
from sidecar.simulator.life import Life
from sidecar.simulator.wire import (
    Answer,
    Call,
    Gone,
    Message,
    Receive,
    Reply,
    Send,
    json_reply,
    read_call,
)

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Path prefixes that the API key guards ([33] serve/middleware/authenticate.py)."""
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"

Handler = Callable[[Life, Call], Awaitable[Reply]]


class App:
    """ASGI; one for each process life. `turn` acts on knobs that kill or restart."""

    def __init__(self, life: Life, turn: Callable[[Knobs], None]) -> None:
        self._life = life
        self._turn = turn

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            call = await read_call(scope, receive)
        except Gone:
            return
        life = self._life

        def on_start(status: str) -> None:
            life.log.access(call.client, call.method, call.target, status)

        await self._answer(call, Answer(send, receive, on_start))

    async def _answer(self, call: Call, answer: Answer) -> None:
        life = self._life
        key = life.profile.api_key
        guarded = call.path.startswith(GUARDED)
        if key and guarded and call.headers.get("authorization") != f"Bearer {key}":
            await answer.whole(json_reply({"error": "Unauthorized"}, 401))
        elif call.path == "/_sim":
            await answer.whole(self._knobs(call))
        elif life.faults.rescaling and call.path != "/health":
            scaling = "The model is currently scaling. Please try again later."
            await answer.whole(json_reply({"error": scaling}, 503))
        elif (call.method, call.path) in GENERATING:
            is_chat = GENERATING[call.method, call.path]
            await generate(life, call, answer, is_chat=is_chat)
        else:
            await answer.whole(await _route(life, call))

    def _knobs(self, call: Call) -> Reply:
        """Not a part of vLLM: GET tells the truth of this life, POST turns knobs."""
        life = self._life
        if call.method == "POST":
            try:
                knobs = Knobs.model_validate_json(call.body)
            except ValidationError as error:
                return json_reply({"error": str(error)}, 422)
            self._turn(knobs)
        truth = {
            "life": life.number,
            "generation_requests": life.generation_requests,
            "steps": life.engine.steps_made,
            "ledger": [asdict(paid) for paid in life.engine.ledger],
        }
        # Its own connection is over with this answer: one that dies would be reset with the rest.
        return replace(json_reply(truth), headers={"connection": "close"})


GENERATING = {("POST", "/v1/completions"): False, ("POST", "/v1/chat/completions"): True}
"""(method, path) → whether it is a chat."""


async def _route(life: Life, call: Call) -> Reply:
    handler = ROUTES.get((call.method, call.path))
    if handler is None and life.profile.dev_mode:
        handler = DEV_ROUTES.get((call.method, call.path))
    if handler is None:
        paths = {path for _, path in (*ROUTES, *GENERATING)}
        if call.path in paths:
            return json_reply({"detail": "Method Not Allowed"}, 405)
        return json_reply({"detail": "Not Found"}, 404)
    try:
        return await handler(life, call)
    except Refusal as refusal:
        return json_reply({"error": refusal.error}, refusal.status)


async def _health(life: Life, call: Call) -> Reply:
    await anyio.sleep(life.faults.health_delay_s)
    return Reply(life.faults.health_status, content_type=None)


async def _models(life: Life, call: Call) -> Reply:
    return json_reply(model_cards(life.profile))


async def _version(life: Life, call: Call) -> Reply:
    return json_reply({"version": life.profile.version})


async def _load(life: Life, call: Call) -> Reply:
    # It stays 0 without --enable-server-load-tracking ([33] basic.py).
    return json_reply({"server_load": 0})


async def _metrics(life: Life, call: Call) -> Reply:
    return Reply(200, life.metrics().encode(), METRICS_TYPE)


async def _openapi(life: Life, call: Call) -> Reply:
    routes = (*ROUTES, *GENERATING, *(DEV_ROUTES if life.profile.dev_mode else ()))
    return json_reply(openapi(life.profile, routes))


async def _kv_event_sources(life: Life, call: Call) -> Reply:
    return json_reply({})


async def _tokenize(life: Life, call: Call) -> Reply:
    body = read_json(call.body)
    check_model(body, life.profile)
    if "messages" in body:
        ids, _ = chat_ids(body)
    elif isinstance(body.get("prompt"), str):
        ids = tokenizer.encode(body["prompt"])
    else:
        detail = {"type": "missing", "loc": "body.prompt", "msg": "Field required"}
        invalid("body.prompt", detail)
    strings = [tokenizer.decode([id_]) for id_ in ids] if body.get("return_token_strs") else None
    return json_reply(
        {
            "count": len(ids),
            "max_model_len": life.profile.engine.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
    )


async def _detokenize(life: Life, call: Call) -> Reply:
    body = read_json(call.body)
    check_model(body, life.profile)
    ids = body.get("tokens")
    if not isinstance(ids, list) or not all(type(id_) is int for id_ in ids):
        detail = {"type": "missing", "loc": "body.tokens", "msg": "Field required"}
        invalid("body.tokens", detail)
    return json_reply({"prompt": tokenizer.decode(ids)})


async def _server_info(life: Life, call: Call) -> Reply:
    return json_reply(server_info(life.profile, as_json=call.query.get("config_format") == "json"))


async def _is_sleeping(life: Life, call: Call) -> Reply:
    # A paused scheduler counts too ([32] v1/engine/core.py, is_sleeping).
    return json_reply({"is_sleeping": life.faults.sleep_level > 0 or life.faults.paused})


async def _sleep(life: Life, call: Call) -> Reply:
    level = call.query.get("level", "1")
    return _slept(life, Knobs.model_validate({"sleep_level": int(level) if level in "12" else 1}))


async def _wake_up(life: Life, call: Call) -> Reply:
    return _slept(life, Knobs(sleep_level=0))


def _slept(life: Life, knobs: Knobs) -> Reply:
    life.faults.set(knobs)
    life.adjust(life.profile)
    level = life.faults.sleep_level
    if level:
        return json_reply({"status": "sleeping", "level": level})
    return json_reply({"status": "awake", "tags": None})


async def _is_paused(life: Life, call: Call) -> Reply:
    return json_reply({"is_paused": life.faults.sleep_level > 0 or life.faults.paused})


async def _pause(life: Life, call: Call) -> Reply:
    return _paused(life, Knobs(paused=True))


async def _resume(life: Life, call: Call) -> Reply:
    return _paused(life, Knobs(paused=False))


def _paused(life: Life, knobs: Knobs) -> Reply:
    life.faults.set(knobs)
    life.adjust(life.profile)
    return json_reply({"status": "paused" if life.faults.paused else "resumed"})


async def _reset_prefix_cache(life: Life, call: Call) -> Reply:
    return json_reply({"success": life.engine.forget_prefixes()})


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/health"): _health,
    ("GET", "/ping"): _health,
    ("POST", "/ping"): _health,
    ("GET", "/load"): _load,
    ("GET", "/version"): _version,
    ("GET", "/metrics"): _metrics,
    ("HEAD", "/metrics"): _metrics,
    ("GET", "/openapi.json"): _openapi,
    ("GET", "/kv_event_sources"): _kv_event_sources,
    ("GET", "/v1/models"): _models,
    ("POST", "/tokenize"): _tokenize,
    ("POST", "/detokenize"): _detokenize,
}
DEV_ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/server_info"): _server_info,
    ("POST", "/sleep"): _sleep,
    ("POST", "/wake_up"): _wake_up,
    ("GET", "/is_sleeping"): _is_sleeping,
    ("GET", "/is_paused"): _is_paused,
    ("POST", "/pause"): _pause,
    ("POST", "/resume"): _resume,
    ("POST", "/reset_prefix_cache"): _reset_prefix_cache,
}
"""VLLM_SERVER_DEV_MODE=1"""
