"""``polybatch generate``."""

import json

import pytest

PROMPTS = ["Hello", "A longer prompt than the others, over two chunks", "x", "Once upon a time", "Why?"]


def as_options(prompts):
    return [part for prompt in prompts for part in ("--prompt", prompt)]


def test_one_prompt_gives_its_answer_and_nothing_else_on_stdout(run, program_dir):
    result = run("generate", program_dir, "--prompt", "Hello", "--max-tokens", "8")
    assert result.exit_code == 0, result.output
    answer = json.loads(run("generate", program_dir, "-p", "Hello", "--max-tokens", "8", "--json").stdout)
    assert result.stdout == answer["completions"][0]["text"] + "\n"


def test_answers_come_in_the_order_of_the_prompts(run, program_dir):
    result = run("generate", program_dir, *as_options(PROMPTS), "--max-tokens", "4")
    assert result.exit_code == 0, result.output
    headings = [line[2:] for line in result.stdout.splitlines() if line.startswith("> ")]
    assert headings == PROMPTS


def test_what_ran_is_on_stderr_by_specialization(run, program_dir):
    result = run("generate", program_dir, *as_options(PROMPTS), "--max-tokens", "4")
    shown = result.stderr.splitlines()
    assert shown[:2] == ["loading the program", "generating"]
    heading = next(line for line in shown if line.startswith("specialization"))
    assert heading.split() == ["specialization", "steps", "rows", "padding", "rows", "p50", "ms"]
    assert any(line.startswith("decode b=4") for line in shown)
    assert "20 new tokens" in shown[-1]


def test_json_is_complete(run, program_dir):
    result = run("generate", program_dir, *as_options(PROMPTS), "--max-tokens", "4", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["program"] == str(program_dir)
    assert data["params"]["max_tokens"] == 4
    assert data["params"]["seed"] == 3
    assert [one["prompt"] for one in data["completions"]] == PROMPTS
    for one in data["completions"]:
        assert one.keys() == {"prompt", "prompt_token_ids", "text", "token_ids", "finish_reason"}
        assert len(one["prompt_token_ids"]) == len(one["prompt"])
        assert one["finish_reason"] == "stop" or len(one["token_ids"]) == 4
    rows = {row["name"]: row for row in data["stats"]["specializations"]}
    assert rows["prefill b=1 s=32"]["steps"] == 6
    assert data["stats"]["generated_tokens"] == sum(len(one["token_ids"]) for one in data["completions"])
    assert result.stderr.splitlines() == ["loading the program", "generating"]


def test_an_answer_does_not_depend_on_the_other_prompts(run, program_dir):
    options = ("--max-tokens", "12", "--temperature", "0.9", "--seed", "11", "--json")
    together = json.loads(run("generate", program_dir, *as_options(PROMPTS), *options).stdout)
    alone = json.loads(run("generate", program_dir, "-p", PROMPTS[3], *options).stdout)
    assert together["completions"][3] == alone["completions"][0]


def test_prompts_come_from_a_file_one_per_line(run, program_dir, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("erste Zeile: ä\n\nsecond line\n", encoding="utf-8")
    data = json.loads(run("generate", program_dir, "--prompts-file", file, "--max-tokens", "2", "--json").stdout)
    assert [one["prompt"] for one in data["completions"]] == ["erste Zeile: ä", "second line"]


def test_only_line_ends_end_a_prompt_of_a_file_and_a_byte_order_mark_is_none_of_it(run, program_dir, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffa\u2028b\r\nc\x0cd\x85e\n\r\nf\x1cg\rh".encode())
    data = json.loads(run("generate", program_dir, "--prompts-file", file, "--max-tokens", "2", "--json").stdout)
    assert [one["prompt"] for one in data["completions"]] == ["a\u2028b", "c\x0cd\x85e", "f\x1cg\rh"]


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_prompts_that_are_no_text_are_one_line_naming_where_they_came_from(run, program_dir, tmp_path, source):
    file = tmp_path / "prompts.bin"
    file.write_bytes(b"one\n\x80\xff\x00")
    option = file if source == "file" else "-"
    result = run("generate", program_dir, "--prompts-file", option, input=file.read_bytes())
    assert result.exit_code == 2
    name = str(file) if source == "file" else "stdin"
    assert result.stderr == f"error: {name} is not UTF-8 text (invalid start byte at byte 4)\n"


@pytest.mark.parametrize("options", [("-p", "\udcff"), ("-p", "x", "--stop", "a\udcff"), ("--system", "\udcff")])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_text_that_is_no_utf8_is_one_line(run, program_dir, command, options):
    if command == "chat":
        options = tuple("--system" if option == "-p" else option for option in options)
    result = run(command, program_dir, *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert "is not valid UTF-8 text" in result.stderr


def test_prompts_come_from_stdin(run, program_dir):
    result = run("generate", program_dir, "--prompts-file", "-", "--max-tokens", "2", "--json", input="one\ntwo\n")
    assert [one["prompt"] for one in json.loads(result.stdout)["completions"]] == ["one", "two"]


def test_chat_wraps_each_prompt_in_the_template(run, program_dir):
    options = ("--chat", "--system", "Be brief", "-p", "Hi", "--max-tokens", "1", "--json")
    one = json.loads(run("generate", program_dir, *options).stdout)["completions"][0]
    from polybatch import Program

    text = Program.load(program_dir).tokenizer().decode(one["prompt_token_ids"])
    assert text == "<s>system:Be brief<s>user:Hi<s>assistant:"
    assert one["prompt"] == "Hi"


def test_a_stop_string_ends_the_answer(run, program_dir):
    whole = json.loads(run("generate", program_dir, "-p", "Hi", "--max-tokens", "30", "--json").stdout)
    text = whole["completions"][0]["text"]
    stop = text[5:7]
    options = ("-p", "Hi", "--max-tokens", "30", "--stop", stop, "--json")
    stopped = json.loads(run("generate", program_dir, *options).stdout)["completions"][0]
    assert stopped["text"] == text[: text.index(stop)]
    assert stopped["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "either with --prompt or with --prompts-file"),
        (("-p", "x", "--prompts-file", "-"), "either with --prompt or with --prompts-file"),
        (("-p", "x", "--system", "y"), "needs --chat"),
        (("-p", "x", "--temperature", "-1"), "temperature=-1.0"),
        (("-p", "x", "--top-p", "0"), "top_p=0.0"),
        (("-p", "x", "--max-tokens", "0"), "max_tokens=0"),
        (("-p", "x", "--threads", "0"), "threads must be from 1 to"),
        (("-p", "x", "--threads", "100000"), "threads must be from 1 to"),
        (("-p", "x" * 256), "256 tokens, but this program takes at most 255"),
        (("-p", ""), "empty"),
        (("--prompts-file", "-"), "holds no prompts"),
        (("--prompts-file", "no-such-file"), "no-such-file"),
    ],
)
def test_what_cannot_run_is_one_line(run, program_dir, options, words):
    result = run("generate", program_dir, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.output


def test_penalties_change_the_answer(run, program_dir):
    options = ("generate", program_dir, "-p", "Hello", "--max-tokens", "150", "--json")
    plain = json.loads(run(*options).stdout)["completions"][0]["token_ids"]
    for penalty in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
        data = json.loads(run(*options, penalty, "2").stdout)
        assert data["params"][penalty[2:].replace("-", "_")] == 2
        assert data["completions"][0]["token_ids"] != plain
    assert json.loads(run(*options, "--min-p", "0.25").stdout)["params"]["min_p"] == 0.25


def test_an_answer_keeps_to_a_regex_or_a_schema(run, program_dir, tmp_path):
    assert run("generate", program_dir, "-p", "Hello", "--regex", "(yes|no)").stdout in ("yes\n", "no\n")
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],'
        '"additionalProperties": false}'
    )
    result = run("generate", program_dir, "-p", "Hello", "--json-schema", schema, "--max-tokens", "200")
    assert json.loads(result.stdout)["ok"] in (True, False)


def test_grammars_that_cannot_be_kept_to_are_one_line(run, program_dir, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text("{")
    for options, said in (
        (("--regex", "a("), "the regex is not valid"),
        (("--json-schema", schema), f"{schema}: the JSON schema is not valid JSON"),
        (("--json-schema", tmp_path / "none.json"), "none.json"),
        (("--json-schema", schema, "--regex", "a"), "leave out --regex"),
        (("--min-p", "2"), "min_p=2.0 is not allowed"),
    ):
        result = run("generate", program_dir, "-p", "Hello", *options)
        assert result.exit_code != 0
        assert said in result.stderr
