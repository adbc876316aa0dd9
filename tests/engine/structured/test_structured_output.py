"""What a structured output may be, and what is refused before a request is queued."""

import sys

import pytest
from engine_mock import mock_program
from tiny_tokenizers import byte_level

from polybatch.engine import Engine, SamplingParams, StructuredOutput
from polybatch.errors import InvalidGrammarError, MissingExtraError, ProgramError

TOKENIZER = byte_level("al", "ph")


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("xml", "", ValueError),
        ("json_object", {}, TypeError),
        ("json_schema", 5, TypeError),
        ("json_schema", "[]", TypeError),
        ("json_schema", "{", InvalidGrammarError),
        ("json_schema", {"a": object()}, InvalidGrammarError),
        pytest.param("json_schema", '{"not":' * 99999 + "{}" + "}" * 99999, InvalidGrammarError, id="deep"),
        ("regex", 5, TypeError),
        ("regex", "\udce9", ValueError),
        ("grammar", None, TypeError),
        ("choice", "ab", TypeError),
        ("choice", [], ValueError),
        ("choice", ["a", ""], ValueError),
        ("choice", [1], TypeError),
    ],
)
def test_a_value_of_another_kind_is_refused(kind, value, error):
    with pytest.raises(error):
        StructuredOutput(kind, value)


def test_values_are_kept_in_a_form_that_compares():
    assert StructuredOutput("json_schema", {"type": "object"}) == StructuredOutput("json_schema", '{"type":"object"}')
    assert StructuredOutput("choice", ["a", "b"]).value == ("a", "b")
    hash(SamplingParams(structured=StructuredOutput("choice", ["a", "b"]), logit_bias={1: 2}))


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("regex", "a(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("grammar", "start: foo", "foo"),
        ("json_schema", {"type": "nonsense"}, "nonsense"),
        ("json_schema", {"not": {"type": "string"}}, "not"),
        ("json_schema", {"$ref": "#/nowhere"}, "nowhere"),
        ("json_schema", {"$ref": "#"}, "no text matches it"),
        ("grammar", "start: start", "no text matches it"),
        ("regex", "(" * 5000 + ")" * 5000, "invalid regex"),
    ],
)
def test_a_grammar_that_makes_no_sense_is_refused_when_it_is_submitted(kind, value, said):
    program = mock_program(text_tokenizer=TOKENIZER, vocab_size=len(TOKENIZER))
    with Engine(program) as engine:
        with pytest.raises(InvalidGrammarError, match=f"the {kind} is not valid: .*{said}"):
            engine.add_request("a", SamplingParams(structured=StructuredOutput(kind, value)))
        assert engine.stats.requests_finished == engine.stats.waiting == 0


def test_a_program_without_a_tokenizer_has_no_grammars():
    with Engine(mock_program()) as engine, pytest.raises(ProgramError, match="no tokenizer"):
        engine.add_request([1], SamplingParams(structured=StructuredOutput("json_object")))


def test_without_llguidance_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    program = mock_program(text_tokenizer=TOKENIZER, vocab_size=len(TOKENIZER))
    with Engine(program) as engine, pytest.raises(MissingExtraError, match=r"polybatch\[structured\]"):
        engine.add_request("a", SamplingParams(structured=StructuredOutput("json_object")))
