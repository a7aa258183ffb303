"""Which fields a variant may carry into a request's body, by endpoint.

vLLM ignores unknown fields with status 200 (0.21-0.33 serve/engine/protocol.py: `extra="allow"`),
so a mistyped one would warm the wrong path in silence: here it is an error. The names are those of
vLLM 0.33 completion/protocol.py and chat_completion/protocol.py. What an engine would refuse with
400 whatever it is (`n` at temperature 0, two constraints at once) is refused here too.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from sidecar.core.grid.readymade import CONSTRAINTS, SAMPLING, Constraint, Sampling
from sidecar.core.nearest import suggest

TokenId = Annotated[int, Field(ge=0, le=10_000_000)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Logprobs = Annotated[int, Field(ge=0, le=1000)]

RULE = "variant_rule"
"""The type of an error whose message is the whole sentence."""

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def _by_form(value: Any) -> str:
    """Which member of a union a value is meant to be, so that its errors are of that one alone.

    The tags are no keys that a file could have: a sentence names a value by what the file has.
    """
    if isinstance(value, dict | BaseModel):
        return "~mapping"
    return "~flag" if isinstance(value, bool) else "~plain"


class _Strict(BaseModel):
    # Strict, so that `true` is no number and "4" no 4: vLLM might read them otherwise.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StructuredOutputs(_Strict):
    """Exactly one constraint. What comes after its end is not constrained."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [n for n in _KINDS if getattr(self, "json_" if n == "json" else n) is not None]
        if len(given) == 1:
            return self
        if given:
            raise _broken(f"{' and '.join(given)} are two constraints; keep one")
        raise _broken(f"names no constraint; give one of {', '.join(_KINDS)}")


class JsonSchema(_Strict):
    """The schema of a response_format."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    """The same constraints in OpenAI's words."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    format: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for kind, needed in (("json_schema", "json_schema"), ("structural_tag", "format")):
            if (self.type == kind) is (getattr(self, needed) is None):
                raise _broken(
                    f"type: {kind} needs {needed}; add it"
                    if self.type == kind
                    else f"{needed} belongs to type: {kind}, not {self.type}; change one of them"
                )
        return self


class Function(_Strict):
    """What a tool does."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict):
    """One tool. It stands in the prompt, whose length is still exact: /tokenize takes tools."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(_Strict):
    """Which tool."""

    name: str


class NamedTool(_Strict):
    """A tool that must be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


StructuredForm = Annotated[
    Annotated[StructuredOutputs, Tag("~mapping")]
    | Annotated[Constraint, Tag("~plain")]
    | Annotated[Constraint, Tag("~flag")],
    Discriminator(_by_form),
]
ToolChoice = Annotated[
    Annotated[NamedTool, Tag("~mapping")]
    | Annotated[Literal["none", "auto", "required"], Tag("~plain")]
    | Annotated[Literal["none", "auto", "required"], Tag("~flag")],
    Discriminator(_by_form),
]
ChatLogprobs = Annotated[
    Annotated[bool, Tag("~flag")]
    | Annotated[Logprobs, Tag("~plain")]
    | Annotated[Logprobs, Tag("~mapping")],
    Discriminator(_by_form),
]


class _Common(_Strict):
    sampling: Sampling | None = Field(
        default=None,
        description="A ready-made way to sample, all of whose fields are set; one that is named "
        "beside it wins. default: none, the server's own.",
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=10_000_000)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = Field(
        default=None, description="Choices of each request; above 1 only in cells of one request."
    )
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    bad_words: list[str] | None = Field(default=None, max_length=1024)
    allowed_token_ids: list[TokenId] | None = Field(default=None, max_length=4096)
    prompt_logprobs: Logprobs | None = Field(
        default=None,
        description="vLLM streams none of them: such a request is timed as a whole, and only in "
        "cells of one request.",
    )
    logprob_token_ids: list[TokenId] | None = Field(default=None, max_length=1024)
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    structured_outputs: StructuredForm | None = Field(
        default=None,
        description="A constraint of your own, or a ready-made one that outlasts a wave.",
    )
    response_format: ResponseFormat | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    stream_interval: Annotated[int, Field(ge=1, le=1000)] | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.sampling == "greedy" and self.temperature:
            raise _broken(
                f"sampling: greedy is a temperature of 0, not {self.temperature:g}; remove one"
            )
        sampled = SAMPLING[self.sampling or "default"]
        temperature = sampled.get("temperature") if self.temperature is None else self.temperature
        if (self.n or sampled.get("n", 1)) > 1 and temperature == 0:
            raise _broken(
                "several choices at a temperature of 0 would all be the same, and vLLM refuses "
                "them; remove n or raise the temperature"
            )
        is_text = self.response_format is None or self.response_format.type == "text"
        if self.structured_outputs is not None and not is_text:
            raise _broken(
                "structured_outputs and response_format both constrain the output; keep one"
            )
        return self


class CompletionsVariant(_Common):
    """A way to ask /v1/completions."""

    endpoint: Literal["completions"] = "completions"
    logprobs: Logprobs | None = None


class ChatVariant(_Common):
    """A way to ask /v1/chat/completions."""

    endpoint: Literal["chat"]
    logprobs: ChatLogprobs | None = Field(
        default=None, description="A number N stands for logprobs: true and top_logprobs: N."
    )
    top_logprobs: Logprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool | None = None
    tools: list[Tool] | None = Field(default=None, min_length=1, max_length=256)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _chats(self) -> Self:
        if self.include_reasoning is False:
            raise _broken(
                "include_reasoning: false hides the first tokens, and with them their time; "
                "remove it, the kernels are the same"
            )
        if self.top_logprobs is not None and self.logprobs is not True:
            raise _broken(
                "top_logprobs goes with logprobs: true; write "
                f"logprobs: {self.top_logprobs} alone, which is both"
            )
        if self.tool_choice in ("auto", "required") and not self.tools:
            raise _broken(f"tool_choice: {self.tool_choice} needs tools; add them")
        if isinstance(self.tool_choice, NamedTool):
            names = [tool.function.name for tool in self.tools or ()]
            wanted = self.tool_choice.function.name
            if wanted not in names:
                raise _broken(
                    f'tool_choice names "{wanted}", which is none of the tools'
                    f"{suggest(wanted, names)}; correct the name or add the tool"
                )
        return self


def _broken(sentence: str) -> PydanticCustomError:
    return PydanticCustomError(RULE, "{sentence}", {"sentence": sentence})


def fields_of(variant: CompletionsVariant | ChatVariant) -> dict[str, Any]:
    """What goes into the body: the fields that the file names, ready-made ones written out."""
    named = variant.model_dump(by_alias=True, exclude_unset=True, exclude={"endpoint", "sampling"})
    fields = dict(SAMPLING[variant.sampling or "default"])
    fields |= {name: value for name, value in named.items() if value is not None}
    ready = variant.structured_outputs
    if isinstance(ready, str):
        fields["structured_outputs"] = dict(CONSTRAINTS[ready])
    if isinstance(variant, ChatVariant):
        _finish_chat(variant, fields)
    return fields


def _finish_chat(variant: ChatVariant, fields: dict[str, Any]) -> None:
    """`logprobs: N` in the words of chat. And the ids of the tokens where tools may be called: vLLM
    holds a call's text back for several tokens, and without ids no chunk tells of them (seen on
    0.32: 40 tokens in 11 chunks; chat_completion/serving.py, delta_message None)."""
    if variant.logprobs is not None and not isinstance(variant.logprobs, bool):
        fields |= {"logprobs": True, "top_logprobs": variant.logprobs}
    if variant.tools:
        fields.setdefault("return_token_ids", True)
