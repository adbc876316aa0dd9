"""Answers in a form that a program can read: one of several texts, a regular expression, a JSON schema.

python examples/structured.py PROGRAM
"""

import json
import sys

from polybatch import Engine, Program, SamplingParams, StructuredOutput

animal = {
    "type": "object",
    "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 8}},
    "required": ["legs"],
    "additionalProperties": False,
}
asked = {
    "Is a whale a fish? Answer:": StructuredOutput("choice", [" yes", " no"]),
    "The first Moon landing was on": StructuredOutput("regex", r" [A-Z][a-z]{2,8} [0-9]{1,2}, [0-9]{4}"),
    "An insect, as JSON:": StructuredOutput("json_schema", animal),
}

with Engine(Program.load(sys.argv[1])) as engine:
    params = [SamplingParams(max_tokens=200, structured=structured) for structured in asked.values()]
    choice, date, described = engine.generate(list(asked), params)

print("one of two:", choice.text)
print("a date:", date.text)
if described.finish_reason == "stop":  # otherwise max_tokens or the context has cut it off
    print("legs:", json.loads(described.text)["legs"])
