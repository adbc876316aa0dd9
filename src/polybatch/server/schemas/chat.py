"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from polybatch.server.schemas.base import Body
from polybatch.server.schemas.sampling import INT64, SamplingBody

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class TextPart(Body):
    """A part of a message's content. Text is the only kind that a program reads."""

    type: Literal["text"]
    text: str


Content = str | list[TextPart]


class FunctionCall(Body):
    """arguments: a JSON object as a string."""

    name: Name
    arguments: str


class ToolCall(Body):
    """A call that an earlier answer made."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class InputMessage(Body):
    """What the system or the user says."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: Annotated[str, Field(max_length=64)] | None = None


class AssistantMessage(Body):
    """What an earlier answer said; fields that only answers have may come back as null, as clients send them."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _check(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("an assistant message needs content or tool_calls")
        return self


class ToolMessage(Body):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Field(max_length=256)]


Message = Annotated[InputMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Function(Body):
    """parameters: a JSON schema of an object."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """The function of a named tool choice."""

    name: Name


class NamedTool(Body):
    """A tool choice that names the function to call."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingBody):
    """messages: the conversation; the program's chat template makes the prompt of it."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=INT64)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise ValueError("tool_choice needs tools")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) != len(names):
            raise ValueError("tools has two functions of the same name")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice names the function {self.tool_choice.function.name}, which is not in tools")
        return self
