"""/v1/completions and /v1/chat/completions, streamed and whole, with the faults that they have."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from sidecar.simulator.asking import Asked
from sidecar.simulator.bodies import Refusal, read_json
from sidecar.simulator.chunks import (
    DONE,
    Frame,
    Said,
    error_event,
    role_chunk,
    token_chunk,
    usage_chunk,
    whole_answer,
)
from sidecar.simulator.life import Life
from sidecar.simulator.model import Emission
from sidecar.simulator.wire import Answer, Call, Reply, json_reply

EVENT_STREAM = "text/event-stream; charset=utf-8"
BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
KEEP_ALIVE = b": keep-alive\n\n"
"""[33] serve/utils/sse_keep_alive.py"""
ENDLESS_PART = b"x" * 16_384
ENDLESS_EVENT = b'data: {"id":"cmpl-0","choices":[{"index":0,"text":"x"}]}\n\n'
ENDLESS_PAUSE_S = 0.001
KILL_DELAY_S = 0.02


async def generate(life: Life, call: Call, answer: Answer, *, is_chat: bool) -> None:
    """Answer one generation request; a client that leaves aborts it."""
    body: dict[str, Any] = {}
    try:
        body = read_json(call.body)
        asked = (life.asker.chat if is_chat else life.asker.completion)(body, call.headers)
        _admit(life, asked)
    except Refusal as refusal:
        # What the engine itself refuses comes after the headers of a stream (seen on 0.32).
        if refusal.late and body.get("stream"):
            await answer.start(200, EVENT_STREAM)
            await answer.part(error_event(refusal.error) + DONE)
            await answer.end()
        else:
            await answer.whole(json_reply({"error": refusal.error}, refusal.status))
        return
    life.generation_requests += 1
    ids = [choice.request.id for choice in asked.choices]

    async def work() -> None:
        if life.faults.kills(asked.prompt_tokens):
            await anyio.sleep(KILL_DELAY_S)
            life.log.out_of_memory()
            life.die()
            await anyio.sleep_forever()
        if life.faults.garbage is not None:
            await _garbage(life, call, answer)
        elif asked.stream:
            await _stream(life, asked, answer)
        else:
            await _whole(life, asked, answer)

    try:
        await answer.while_connected(work)
    finally:
        for id_ in ids:
            life.driver.abort(id_)
            life.stats.aborted(id_)


def _admit(life: Life, asked: Asked) -> None:
    limit = life.profile.max_queued_requests
    in_flight = life.driver.in_flight
    if life.faults.reject or (limit is not None and in_flight + len(asked.choices) > limit):
        life.rejected += 1
        raise Refusal(503, BUSY, kind="Service Unavailable")
    failure = life.faults.fails(asked.prompt_tokens, in_flight + 1)
    if failure is not None:
        raise Refusal(failure.status, failure.message, kind="InternalServerError")


async def _outputs(
    life: Life, asked: Asked, said: list[Said], keep_alive: Callable[[], Awaitable[None]]
) -> AsyncIterator[tuple[Said, int]]:
    """(choice, number of its new tokens) as they come, until all have ended.

    `keep_alive` is called while the first of them is waited for.
    """
    queue: asyncio.Queue[Emission] = asyncio.Queue()
    by_id = {one.choice.request.id: one for one in said}
    for one in said:
        life.stats.arrived(one.choice.request, life.driver.now_s)
        life.driver.submit(one.choice.request, queue)
    left = len(said)
    has_begun = False
    while left:
        every_s = 0.0 if has_begun else life.profile.sse_keep_alive_s
        emission = await _next(queue, every_s, keep_alive)
        has_begun = True
        one = by_id[emission.request_id]
        one.cached_tokens += emission.cached_tokens
        one.finish_reason = emission.finish_reason
        left -= emission.finished
        yield one, emission.tokens


async def _next(
    queue: asyncio.Queue[Emission], every_s: float, keep_alive: Callable[[], Awaitable[None]]
) -> Emission:
    """The next of the queue; until it is there `keep_alive` is called, where `every_s` is not 0."""
    while every_s:
        with anyio.move_on_after(every_s):
            return await queue.get()
        await keep_alive()
    return await queue.get()


def _begin(life: Life, asked: Asked) -> tuple[Frame, list[Said]]:
    frame = Frame(
        asked,
        life.profile.model,
        life.fingerprint,
        cached_details=life.profile.prompt_tokens_details,
        usage_offset=life.faults.usage_offset,
    )
    said = [
        Said(choice, choice.request.max_tokens, asked.is_thinking, asked.ruled)
        for choice in asked.choices
    ]
    return frame, said


async def _stream(life: Life, asked: Asked, answer: Answer) -> None:
    await answer.start(200, EVENT_STREAM)
    frame, said = _begin(life, asked)
    has_begun = False
    async for one, tokens in _outputs(life, asked, said, partial(answer.part, KEEP_ALIVE)):
        if asked.is_chat and not has_begun:
            has_begun = True
            for each in said:
                await answer.part(role_chunk(frame, each))
        chunk = token_chunk(frame, said, one, one.say(tokens))
        if chunk is not None:
            await answer.part(chunk)
    if asked.include_usage:
        await answer.part(usage_chunk(frame, said))
    await answer.part(DONE)
    await answer.end()


async def _nothing() -> None:
    """An answer that is not streamed has no line to be kept alive."""


async def _whole(life: Life, asked: Asked, answer: Answer) -> None:
    frame, said = _begin(life, asked)
    async for one, tokens in _outputs(life, asked, said, _nothing):
        one.say(tokens)
    await answer.whole(json_reply(whole_answer(frame, said)))


async def _garbage(life: Life, call: Call, answer: Answer) -> None:
    kind = life.faults.garbage
    if kind == "html":
        page = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
        await answer.whole(Reply(200, page, "text/html"))
        return
    if kind == "wrong_json":
        await answer.whole(json_reply({"hello": "world"}))
        return
    await answer.start(200, EVENT_STREAM)
    if kind == "sse":
        await answer.part(b"data: {not json\n\ndata: 17\n\nnonsense\n\ndata: [DONE]\n\n")
        await answer.end()
    elif kind == "truncate":
        await answer.part(b'data: {"id":"cmpl-0","object":"text_completion","choices":[{"ind')
        life.cut(call.client)
    else:
        part = b"data: " + ENDLESS_PART if kind == "line" else ENDLESS_EVENT * 100
        while True:
            await answer.part(part)
            await anyio.sleep(ENDLESS_PAUSE_S)
