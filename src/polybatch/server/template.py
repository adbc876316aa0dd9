"""From messages to the prompt that the program's chat template makes of them."""

from __future__ import annotations

import json
from typing import Any

from jinja2.exceptions import TemplateError

from polybatch.server.errors import bad_request
from polybatch.server.model import ServedModel
from polybatch.server.schemas.chat import AssistantMessage, ChatBody, Content, InputMessage, ToolMessage

_RESERVED = {"conversation", "messages", "tools", "tokenize", "add_generation_prompt", "chat_template", "documents"}
_RESERVED |= {"continue_final_message", "return_dict", "return_tensors", "padding", "truncation", "max_length"}
_RESERVED |= {"return_assistant_tokens_mask", "tokenizer_kwargs"}


def render(model: ServedModel, body: ChatBody) -> str:
    """The prompt text. Templates run in the sandbox of transformers; what they raise is a 400."""
    tokenizer = model.require_tokenizer("messages")
    if not tokenizer.chat_template:
        raise bad_request("messages: this program has no chat template; use /v1/completions", "messages")
    extra = body.chat_template_kwargs or {}
    if reserved := sorted(_RESERVED & set(extra)):
        raise bad_request(f"chat_template_kwargs: {reserved[0]} cannot be set here", "chat_template_kwargs")
    messages = [_plain(message, at) for at, message in enumerate(body.messages)]
    tools = None if body.tool_choice == "none" else _tools(body)
    text = _apply(tokenizer, messages, tools, extra)
    if tools and text == _apply(tokenizer, messages, None, extra):
        raise bad_request("tools: the chat template of this program does not show tools to the model", "tools")
    return text


def _apply(tokenizer: Any, messages: list[dict[str, Any]], tools: Any, extra: dict[str, Any]) -> str:
    try:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tools=tools, tokenize=False, add_generation_prompt=True, **extra
        )
    except TemplateError as error:  # such as a template's own raise_exception
        raise bad_request(f"messages: the chat template refuses these messages: {error}", "messages") from error
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise bad_request("messages: the chat template cannot render these messages", "messages") from error
    return text


def _tools(body: ChatBody) -> list[dict[str, Any]] | None:
    if not body.tools:
        return None
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in body.tools]


def _plain(message: InputMessage | AssistantMessage | ToolMessage, at: int) -> dict[str, Any]:
    """A message as templates know it: content is text, and arguments of calls are objects."""
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    elif message.name is not None:
        plain["name"] = message.name
    if isinstance(message, AssistantMessage) and message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments, at)},
            }
            for call in message.tool_calls
        ]
    return plain


def _arguments(text: str, at: int) -> Any:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        param = f"messages.{at}.tool_calls"
        raise bad_request(f"{param}: the arguments of a call are not a JSON object", param)
    return arguments


def _text(content: Content | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)
