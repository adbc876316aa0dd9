"""The engine with its thread: the blocking calls."""

import threading

import numpy as np
import pytest
from engine_harness import answers, greedy, wait_until
from engine_mock import mock_program, next_token, solo_tokens
from tiny_tokenizers import byte_level

from polybatch.engine import Completion, Engine, SamplingParams
from polybatch.engine.speculation.prompt_lookup import PromptLookup
from polybatch.errors import ProgramError


def test_generate_returns_results_in_the_order_given():
    prompts = [[i + 1] * (i + 1) for i in range(10)]
    lengths = [10, 1, 7, 3, 9, 2, 8, 4, 6, 5]
    with Engine(mock_program()) as engine:
        completions = engine.generate(prompts, [greedy(length) for length in lengths])
    assert answers(completions) == [solo_tokens(p, n) for p, n in zip(prompts, lengths, strict=True)]
    assert [completion.prompt_token_ids for completion in completions] == [tuple(prompt) for prompt in prompts]


def test_static_batching_gives_the_same_answers():
    prompts = [[i + 1] * (3 * i + 1) for i in range(7)]
    with Engine(mock_program(3, continuous_batching=False)) as engine:
        assert answers(engine.generate(prompts, greedy(9))) == [solo_tokens(prompt, 9) for prompt in prompts]


def test_one_prompt_gives_a_list_of_one():
    with Engine(mock_program(text_tokenizer=byte_level())) as engine:
        assert answers(engine.generate("ab", greedy(4))) == [solo_tokens(list(b"ab"), 4)]
        assert answers(engine.generate([1, 2], greedy(4))) == [solo_tokens([1, 2], 4)]
        assert engine.generate([]) == []


def test_text_is_the_decoded_tokens_without_eos():
    tokenizer = byte_level()
    prompt = list(b"hey")
    tokens, _ = solo_tokens(prompt, 6)
    with Engine(mock_program(text_tokenizer=tokenizer, eos_token_ids=(tokens[5],))) as engine:
        (completion,) = engine.generate("hey", greedy(20))
    assert completion.token_ids == tokens[: tokens.index(tokens[5]) + 1]
    assert completion.text == tokenizer.decode(list(completion.token_ids[:-1]), skip_special_tokens=True)
    assert completion.finish_reason == "stop"


def test_one_bad_prompt_queues_nothing_and_disturbs_nobody():
    program = mock_program()
    with Engine(program) as engine:
        running = engine.add_request([3], greedy(30))
        with pytest.raises(ValueError, match="64 tokens, but this program takes at most 63"):
            engine.generate([[1], [1] * 64, [2]], greedy(4))
        assert answers([running.result()]) == [solo_tokens([3], 30)]
        assert engine.stats.requests_finished == 1
        assert engine.stats.waiting == 0


def test_params_must_match_the_prompts():
    with Engine(mock_program()) as engine:
        with pytest.raises(ValueError, match="2 prompts but 1 params"):
            engine.generate([[1], [2]], [greedy(1)])
        with pytest.raises(TypeError, match="give SamplingParams"):
            engine.add_request([1], {"max_tokens": 3})


def test_without_a_tokenizer_text_is_refused_and_token_ids_run():
    with Engine(mock_program()) as engine:
        with pytest.raises(ProgramError, match="no tokenizer"):
            engine.generate("hello")
        with pytest.raises(ValueError, match="needs a tokenizer"):
            engine.generate([1], SamplingParams(stop="x"))
        (completion,) = engine.generate([1], greedy(3))
    assert (completion.text, len(completion.token_ids)) == ("", 3)


def test_speculation_that_cannot_run_is_refused():
    with pytest.raises(TypeError, match=r"'lookup' is no way to speculate; give PromptLookup\(\)"):
        Engine(mock_program(), speculation="lookup")
    with pytest.raises(ValueError, match=r"recompile it with num_speculative_tokens, for example \[0, 3, 7\]"):
        Engine(mock_program(), speculation=PromptLookup())
    program = mock_program(table_options={"num_speculative_tokens": [0, 3]})
    with pytest.raises(ValueError, match=r"fixed_k=2 was not compiled; this program has K=\[0, 3\]"):
        Engine(program, speculation=PromptLookup(), fixed_k=2)
    with pytest.raises(ValueError, match="fixed_k=3 needs speculation"):
        Engine(program, fixed_k=3)


def test_threads_reach_the_session():
    program = mock_program()
    Engine(program, threads=3).close()
    assert program.threads == 3


def test_stream_gives_the_pieces_of_generate():
    program = mock_program(text_tokenizer=byte_level())
    with Engine(program) as engine:
        (whole,) = engine.generate("hi", greedy(12))
        deltas = list(engine.stream("hi", greedy(12)))
    assert tuple(token for delta in deltas for token in delta.token_ids) == whole.token_ids
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [delta.finish_reason for delta in deltas] == [None] * 11 + ["length"]


def test_a_handle_can_be_read_and_then_asked_for_the_result():
    with Engine(mock_program()) as engine:
        handle = engine.add_request([1], greedy(5))
        first = next(handle)
        result = handle.result()
        assert result.token_ids[:1] == first.token_ids
        assert handle.result() is result
        assert list(handle) == []


def test_a_slow_reader_does_not_block_the_others():
    with Engine(mock_program()) as engine:
        slow = engine.stream([1], greedy(50))
        assert answers(engine.generate([2], greedy(50))) == [solo_tokens([2], 50)]
        assert len(list(slow)) == 50


def test_many_threads_share_an_engine():
    results = {}
    with Engine(mock_program()) as engine:

        def run(i):
            results[i] = engine.generate([[i, j] for j in range(5)], greedy(7))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    for i in range(8):
        assert answers(results[i]) == [solo_tokens([i, j], 7) for j in range(5)]


def test_an_emoji_in_pieces_beside_another_request():
    tokenizer = byte_level()
    text = "a\U0001f600b"
    script = list(text.encode())
    program = mock_program(text_tokenizer=tokenizer, vocab_size=None)
    with Engine(program) as engine:
        session = program.last_session
        plain = session.run_live

        def scripted(inputs):
            """Slot 0 spells the text; the other slots run as usual."""
            slots = inputs["batch_index"][:, 0].tolist()
            outputs = []
            for i, slot in enumerate(slots):
                if slot == 0:
                    logits = [1.0 if token == script[inputs["position_ids"][i].max()] else 0.0 for token in range(256)]
                else:
                    row = plain({name: array[i : i + 1] for name, array in inputs.items()})
                    logits = [*row[0], *[-1e9] * (256 - row.shape[-1])]
                outputs.append(logits)
            return np.array(outputs, "float32")

        session.run_live = scripted
        stream = engine.stream([1], greedy(len(script)))
        other = engine.add_request([2, 3], greedy(12))
        deltas = [delta.text for delta in stream]
        assert other.result().token_ids[0] == next_token([2, 3])
    assert deltas == ["a", "", "", "", "\U0001f600", "b"]
    assert "".join(deltas) == tokenizer.decode(script, skip_special_tokens=True)


def test_submitted_requests_send_their_events_to_their_sinks():
    program = mock_program()
    with Engine(program) as engine:
        events = [[], []]
        ids = engine.submit([([1], greedy(3), events[0].append), ([2], None, events[1].append)], timeout_s=60)
        wait_until(lambda: all(sent and isinstance(sent[-1], Completion) for sent in events))
        assert [sent[-1].request_id for sent in events] == ids
        assert events[0][-1].token_ids == solo_tokens([1], 3)[0]
        with pytest.raises(ValueError, match="empty"):
            engine.submit([([1], None, events[0].append), ([], None, events[1].append)])
        assert engine.stats.waiting + engine.stats.live == 0
