"""``tool_choice`` required or named: the answer is held to the JSON of one call."""

from __future__ import annotations

from typing import Any

from polybatch.engine import StructuredOutput
from polybatch.server.errors import bad_request
from polybatch.server.schemas.chat import ChatBody, Function, NamedTool


def forced_call(body: ChatBody) -> StructuredOutput | None:
    """What an answer that must be a call has to match; None when it may be text.

    Raises ApiError when the request also asks for another form.
    """
    if not body.tools or body.tool_choice in (None, "none", "auto"):
        return None
    if body.structured_outputs is not None or (body.response_format and body.response_format.type != "text"):
        raise bad_request("tool_choice: an answer that must be a call cannot have another form as well", "tool_choice")
    functions = [tool.function for tool in body.tools]
    if isinstance(body.tool_choice, NamedTool):
        functions = [one for one in functions if one.name == body.tool_choice.function.name]
    try:
        return StructuredOutput("json_schema", _schema(functions))
    except (ValueError, TypeError) as error:
        raise bad_request(f"tools: {error}", "tools") from error


def _schema(functions: list[Function]) -> dict[str, Any]:
    calls = [_call_schema(function) for function in functions]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _call_schema(function: Function) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": function.parameters or {"type": "object"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
