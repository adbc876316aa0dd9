"""``--speculate`` and ``--fixed-k``."""

import json
from pathlib import Path

import pytest
from cli.eager_program import compile_eager
from typer.testing import CliRunner

from polybatch.cli import app
from polybatch.cli.speculate import speculation_line
from polybatch.engine import SpeculationStats

PROMPT = "to be or not to be or not to be or not to be"
OPTIONS = ("--max-tokens", "24", "--json")


@pytest.fixture(scope="module")
def speculative_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "speculative.poly"
    return compile_eager(model_dir, path, "--batch-size", "1,2", "--num-speculative-tokens", "0,3,7")


@pytest.fixture(scope="module")
def plain_answer(speculative_dir: Path) -> dict:
    result = CliRunner().invoke(app, ["generate", str(speculative_dir), "-p", PROMPT, *OPTIONS])
    return json.loads(result.stdout)["completions"][0]


def test_inspect_shows_the_k_values(run, speculative_dir):
    assert "speculative decoding: K=[0,3,7]" in run("inspect", speculative_dir).stdout


@pytest.mark.parametrize("more", [(), ("--fixed-k", "3")])
def test_lookup_gives_the_same_answer_and_counts(run, speculative_dir, plain_answer, more):
    result = run("generate", speculative_dir, "-p", PROMPT, *OPTIONS, "--speculate", "lookup", *more)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    (one,) = data["completions"]
    counts = one.pop("speculation")
    assert one == plain_answer
    assert counts == data["stats"]["speculation"]
    assert counts["drafted"] == sum(counts["drafted_at"]) >= counts["accepted"] == sum(counts["accepted_at"])
    assert {step["K"] for step in counts["steps"]} <= {0, 3, 7}
    if more:
        assert counts["drafted"] > 0
        assert 7 not in {step["K"] for step in counts["steps"]}


def test_a_draft_program_gives_the_same_answer(run, speculative_dir, program_dir, plain_answer):
    options = ("--speculate", program_dir, "--fixed-k", "7")
    data = json.loads(run("generate", speculative_dir, "-p", PROMPT, *OPTIONS, *options).stdout)
    (one,) = data["completions"]
    counts = one.pop("speculation")
    assert one == plain_answer
    assert counts["accepted"] > 0.9 * counts["drafted"] > 0  # it is the same model


def test_what_was_accepted_is_on_stderr(run, speculative_dir):
    result = run("generate", speculative_dir, "-p", PROMPT, "--speculate", "lookup", "--fixed-k", "3")
    assert result.stderr.splitlines()[-1].startswith("drafted ")
    assert speculation_line(SpeculationStats((4, 2), (3, 0), {})) == (
        "drafted 6 tokens, accepted 3 (50%); by position 75% 0%"
    )
    assert speculation_line(SpeculationStats((), (), {})) == "drafted no tokens"


def test_chat_takes_the_options(run, speculative_dir):
    plain = run("chat", speculative_dir, "--max-tokens", "8", input="Hello\n")
    drafted = run("chat", speculative_dir, "--max-tokens", "8", "--speculate", "lookup", input="Hello\n")
    assert drafted.exit_code == 0, drafted.output
    assert drafted.stdout == plain.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fixed-k", "3"), "needs --speculate"),
        (("--speculate", "lookup", "--fixed-k", "5"), "fixed_k=5 was not compiled; this program has K=[0, 3, 7]"),
        (("--speculate", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_line(run, speculative_dir, options, message):
    result = run("generate", speculative_dir, "-p", PROMPT, *options)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]


def test_a_program_without_rows_for_drafts_says_what_to_do(run, program_dir):
    result = run("generate", program_dir, "-p", PROMPT, "--speculate", "lookup")
    assert result.exit_code == 2
    assert "recompile it with num_speculative_tokens, for example [0, 3, 7]" in result.stderr
