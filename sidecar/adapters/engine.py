"""The engine over HTTP: is it there, what is it, what has it counted. Waves go by `replay`."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import httpx
from anyio import to_thread
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sidecar.adapters.answer import Answer, remedy, says
from sidecar.adapters.healthline import HealthLine, line_transport
from sidecar.adapters.presence import PresenceLine
from sidecar.adapters.target import Target, tls_context
from sidecar.core import facts as learn_from
from sidecar.core.errors import ConfigError, EngineRejected, EngineUnavailable
from sidecar.core.facts import EngineFacts
from sidecar.core.watch.boot import BootMark, mark_of
from sidecar.core.watch.presence import Presence
from sidecar.core.wire.health import Health
from sidecar.core.wire.metrics import Scrape, parse
from sidecar.core.wire.prompts import PHRASE, PROBE_TEXT, usable_ids
from sidecar.core.wire.sse import one_line

MAX_ANSWER_BYTES = 16 << 20
"""/openapi.json has 0.3 MB and /metrics of eight ranks less than one; a stranger may send more."""

_LEARN_TIMEOUT_S = 60.0
"""/server_info looks the whole machine over at its first call (vLLM 0.33 collect_env)."""

_ATTEMPTS = 3

_LARGE_BYTES = 1 << 20
"""Read in a thread: a probe may be waiting for its answer meanwhile."""

_TEMPLATE_FIELDS = ("chat_template_kwargs", "tools", "add_generation_prompt")
"""Fields of a chat variant that change the rendered prompt and that /tokenize takes too."""


class TooBig(httpx.HTTPError):
    """An answer above the bound."""


class Engine:
    """One engine at one base URL; one HTTP client. Every wait has a limit."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        tls_ca_file: str | None = None,
        tls_verify: bool = True,
        timeout_s: float = 5.0,
    ) -> None:
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("the API key holds characters that no HTTP header can carry")
        base = httpx.URL(url)
        self.url = url
        self._model = model
        self._timeout_s = timeout_s
        tls = tls_context(tls_ca_file, verify=tls_verify) if base.scheme == "https" else None
        self.target = Target(
            host=base.host,
            port=base.port or (443 if tls else 80),
            path=base.path.rstrip("/"),
            tls=tls,
            authorization=None if api_key is None else f"Bearer {api_key}",
        )
        headers = {"Accept-Encoding": "identity", "User-Agent": "vllm-warmup"}
        if self.target.authorization is not None:
            headers["Authorization"] = self.target.authorization
        # A bare context where there is no TLS saves 20 ms of reading CA files.
        verify = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # No proxies or netrc of the environment, and no redirects: the key goes to this origin
        # and nowhere else.
        client = partial(
            httpx.AsyncClient,
            base_url=url,
            headers=headers,
            verify=verify,
            follow_redirects=False,
            trust_env=False,
            timeout=timeout_s,
        )
        self._client = client(limits=httpx.Limits(max_connections=16, max_keepalive_connections=4))
        # A connection for each look: kept ones would all lead to the same engine behind a balancer.
        self._marking = client(limits=httpx.Limits(max_connections=16, max_keepalive_connections=0))
        self._line = HealthLine(client(transport=line_transport(verify)), timeout_s)
        self._presence = PresenceLine(lambda path: self._ask("GET", path), self.scrape)

    async def aclose(self) -> None:
        """Close the clients' connections."""
        await self._line.aclose()
        await self._marking.aclose()
        await self._client.aclose()

    async def health(self) -> Health:
        """One look at /health. Never raises."""
        return await self._line.ask()

    async def presence(self) -> Presence:
        """Whether it serves, sleeps, is paused or rescaled. Never raises."""
        return await self._presence.ask()

    async def touch(self, path: str) -> None:
        """GET a path for the line that it leaves in the engine's access log. Never raises."""
        with contextlib.suppress(httpx.HTTPError):
            await self._once_more_if_closed(lambda: self._ask("GET", path))

    async def learn(self) -> EngineFacts:
        """Everything the engine tells about itself.

        Raises EngineUnavailable (nobody there yet) or EngineRejected (wrong key, unknown model,
        not vLLM), each with one sentence.
        """
        self._presence.forget()
        models = await self._get("/v1/models")
        self._check_accepted(models)
        listed = await self._json(models)
        try:
            facts = learn_from.from_models(EngineFacts(), listed, self._model)
        except EngineRejected as refusal:
            raise EngineRejected(f"the engine at {self.url} is not usable: {refusal}") from None
        facts = learn_from.learned(facts, "/version", version=await self._version())
        scrape = await self.scrape()
        if scrape is not None:
            facts = learn_from.from_scrape(facts, scrape)
        server_info = await self._optional_json("/server_info?config_format=json")
        facts = learn_from.from_server_info(facts, server_info)
        facts = learn_from.from_openapi(facts, await self._optional_json("/openapi.json"))
        return await self._probe_ids(facts)

    async def _probe_ids(self, facts: EngineFacts) -> EngineFacts:
        try:
            probed = await self._tokenize({"prompt": PROBE_TEXT, "add_special_tokens": False})
            phrase = await self._tokenize({"prompt": PHRASE, "add_special_tokens": False})
        except EngineUnavailable:
            probed = phrase = []
        ids = usable_ids(vocab_size=facts.vocab_size, probed=probed, phrase=phrase)
        return learn_from.learned(facts, "/tokenize" if probed else "/server_info", token_ids=ids)

    async def mark(self) -> BootMark:
        """What tells this boot from another; what can't be read is None. Never raises."""
        fresh = self._marking
        version, models, scrape = await asyncio.gather(
            self._version(fresh), self._base_models(fresh), self.scrape(fresh)
        )
        return mark_of(scrape, version=version, models=models)

    async def scrape(self, client: httpx.AsyncClient | None = None) -> Scrape | None:
        """One reading of /metrics; None where there is none."""
        try:
            answer = await self._once_more_if_closed(
                lambda: self._ask("GET", "/metrics", client=client)
            )
        except httpx.HTTPError:
            return None
        if answer.status != 200:
            return None
        page = answer.body.decode("utf-8", "replace")
        # A page of 64 kB takes 0.7 ms; one of a stranger's megabytes is read beside the loop.
        large = len(page) > _LARGE_BYTES
        scrape = await to_thread.run_sync(parse, page) if large else parse(page)
        self._presence.saw_asleep = bool(scrape.asleep)
        return scrape if scrape.is_vllm or scrape.process_start_s is not None else None

    async def page(self) -> str:
        """The text of /metrics. Raises EngineUnavailable where there is none."""
        answer = await self._get("/metrics")
        if answer.status != 200:
            raise EngineUnavailable(f"{self.url}/metrics answered {says(answer)}")
        return answer.body.decode("utf-8", "replace")

    async def tokenize_chat(self, text: str, fields: Mapping[str, Any]) -> int:
        """Tokens of a chat prompt with `text` as the user's message, template included.

        `fields` are the variant's. Raises EngineUnavailable where /tokenize doesn't answer.
        """
        return len(await self.chat_ids(text, fields))

    async def chat_ids(self, text: str, fields: Mapping[str, Any]) -> list[int]:
        """The token ids of that prompt."""
        body: dict[str, Any] = {name: fields[name] for name in _TEMPLATE_FIELDS if name in fields}
        effort = fields.get("reasoning_effort")
        if effort is not None:
            # The chat endpoint hands it to the template, and thinking with it (vLLM 0.32
            # chat_completion/protocol.py, build_chat_params); /tokenize has no such field.
            given = body.get("chat_template_kwargs") or {}
            derived = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
            body["chat_template_kwargs"] = {**derived, **given}
        return await self._tokenize({**body, "messages": [{"role": "user", "content": text}]})

    async def _tokenize(self, body: Mapping[str, Any]) -> list[int]:
        asked = {"model": self._model, **body} if self._model else dict(body)
        try:
            answer = await self._ask("POST", "/tokenize", json.dumps(asked).encode(), timeout_s=30)
        except httpx.HTTPError as problem:
            raise EngineUnavailable(self._sentence("/tokenize", problem)) from None
        if answer.status != 200:
            raise EngineUnavailable(f"{self.url}/tokenize answered {says(answer)}")
        tokens = (await self._json(answer)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(one, int) for one in tokens):
            raise EngineUnavailable(f"{self.url}/tokenize answered without a list of tokens")
        return tokens

    async def _version(self, client: httpx.AsyncClient | None = None) -> str | None:
        version = (await self._optional_json("/version", client)).get("version")
        return one_line(version, 60) if isinstance(version, str) else None

    async def _base_models(self, client: httpx.AsyncClient) -> tuple[str, ...] | None:
        body = await self._optional_json("/v1/models", client)
        try:
            return learn_from.from_models(EngineFacts(), body, None).models
        except EngineRejected:
            return None

    async def _optional_json(
        self, path: str, client: httpx.AsyncClient | None = None
    ) -> dict[str, Any]:
        """The object at a path that not every engine has; {} where it isn't."""
        try:
            answer = await self._get(path, attempts=1, client=client)
            return await self._json(answer) if answer.status == 200 else {}
        except EngineUnavailable:
            return {}

    async def _get(
        self, path: str, attempts: int = _ATTEMPTS, client: httpx.AsyncClient | None = None
    ) -> Answer:
        """A GET, repeated when the connection breaks. Raises EngineUnavailable."""
        again = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=wait_exponential(multiplier=0.1, max=1.0),
            retry=retry_if_exception_type((httpx.NetworkError, httpx.RemoteProtocolError)),
            reraise=True,
        )
        timeout_s = _LEARN_TIMEOUT_S if path.startswith("/server_info") else self._timeout_s
        try:
            return await again(self._ask, "GET", path, timeout_s=timeout_s, client=client)
        except httpx.HTTPError as problem:
            raise EngineUnavailable(self._sentence(path, problem)) from None

    async def _once_more_if_closed(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """A server may close a kept connection just as it is used again: that is no outage."""
        try:
            return await ask()
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await ask()

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> Answer:
        """One request. Raises httpx.HTTPError or TooBig; the limit holds for the whole answer."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = path.lstrip("/")
        try:
            async with (
                asyncio.timeout(limit_s),
                (client or self._client).stream(
                    method, url, content=body, headers=headers, timeout=limit_s
                ) as response,
            ):
                read = bytearray()
                async for piece in response.aiter_raw():
                    read += piece
                    if len(read) > MAX_ANSWER_BYTES:
                        raise TooBig(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer within {limit_s:g} s") from None
        return Answer(
            response.status_code,
            response.headers.get("content-type", ""),
            self.target.without_key(bytes(read)),
            self.target.without_key(response.headers.get("location", "").encode()).decode(),
            response.headers.get("content-encoding", ""),
        )

    def _check_accepted(self, answer: Answer) -> None:
        """Raise where /v1/models was not given, and say what to change."""
        status = answer.status
        if status in (401, 403):
            key = "the API key" if self.target.authorization else "a request without an API key"
            raise EngineRejected(
                f"the engine at {self.url} refuses {key} ({status}): set WARMUP_API_KEY or "
                "WARMUP_API_KEY_FILE to the key that vLLM was started with, and start the "
                "sidecar again"
            )
        if 300 <= status < 400:
            raise EngineRejected(
                f"{self.url} redirects to {one_line(answer.location, 120)!r}, and a key is never "
                "carried across a redirect: set WARMUP_ENGINE_URL to the engine's own address"
            )
        if status >= 500:
            raise EngineUnavailable(
                f"the engine at {self.url} answers {says(answer)}; wait, it may still be loading"
            )
        if status != 200:
            raise EngineRejected(
                f"{self.url} is no vLLM server: /v1/models answers {says(answer)}; "
                "check the address and the path in WARMUP_ENGINE_URL"
            )

    async def _json(self, answer: Answer) -> dict[str, Any]:
        """The object in an answer. Raises EngineRejected: whoever sends no JSON is not vLLM."""
        read = partial(json.loads, answer.body)
        try:
            body = await to_thread.run_sync(read) if len(answer.body) > _LARGE_BYTES else read()
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise EngineRejected(
                f"{self.url} is no vLLM server: it answers {says(answer)} where JSON is due; "
                "check the address and the path in WARMUP_ENGINE_URL"
            )
        return body

    def _sentence(self, path: str, problem: Exception) -> str:
        reason = one_line(str(problem)).rstrip(".") or type(problem).__name__
        return f"no answer from {self.url}{path}: {reason}; {remedy(problem)}"
