"""/metrics, /slots and what the page is told."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.live_server import NAME, Both, LiveServer, wait_until
from server.scripted_program import ScriptedProgram

from polybatch.engine import PromptLookup
from polybatch.server.metrics.latency import Histogram


@pytest.fixture(scope="module")
def used():
    """A server that has answered three requests, 8 tokens each, one of them streamed, and refused one."""
    program = ScriptedProgram(table_options={"num_speculative_tokens": [0, 3]})
    with LiveServer(program, speculation=PromptLookup()) as server:
        endpoint = Both(server.ready(), "completions")
        endpoint.whole("abcd", max_tokens=8)
        endpoint.whole("abcd", max_tokens=8)
        endpoint.streamed("hello", max_tokens=8)
        server.call("/v1/completions", {})
        yield server


def samples(server):
    status, text, headers = server.call("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sorted(value for label, value in sample.labels.items() if label != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_and_tokens_under_the_names_of_vllm(used):
    found = samples(used)
    assert found["vllm:num_requests_running",] == 0
    assert found["vllm:num_requests_waiting",] == 0
    assert found["vllm:kv_cache_usage_perc",] == 0
    assert found["vllm:generation_tokens_total",] == 24
    assert found["vllm:request_success_total", "length"] == 3
    assert found["vllm:prompt_tokens_total",] + found["vllm:prefix_cache_hits_total",] == 4 + 4 + 5
    assert found["vllm:prefix_cache_hits_total",] == used.stats.reused_tokens
    assert found["vllm:time_to_first_token_seconds_count",] == 3
    assert found["vllm:e2e_request_latency_seconds_count",] == 3
    assert found["vllm:inter_token_latency_seconds_count",] == 21
    assert found["vllm:request_generation_tokens_sum",] == 24
    assert found["polybatch:http_responses_total", "400"] == 1


def test_steps_rows_and_seconds_by_specialization(used):
    found = samples(used)
    steps = {key[1:]: value for key, value in found.items() if key[0] == "polybatch:steps_total"}
    assert sum(steps.values()) == used.stats.steps
    assert any("prefill" in labels for labels in steps)
    assert all(found[("polybatch:step_seconds_total", *labels)] > 0 for labels in steps)
    assert all(found[("polybatch:step_rows_total", *labels)] >= count for labels, count in steps.items())


def test_every_model_metric_names_the_model(used):
    lines = [line for line in used.call("/metrics")[1].splitlines() if line.startswith("vllm:")]
    assert lines
    assert all(f'model_name="{NAME}"' in line for line in lines)


def test_a_histogram_counts_upwards():
    histogram = Histogram([1, 2])
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1", 2.0), ("2", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 12.0


def test_slots_say_who_runs_and_how_far_it_is():
    with LiveServer(ScriptedProgram(ctx_len=512, delay_s=0.005)) as server, ThreadPoolExecutor() as pool:
        endpoint = Both(server.ready(), "completions")
        running = pool.submit(endpoint.whole, "hello", max_tokens=60, ignore_eos=True, user="alice")
        wait_until(lambda: any(slot["generated_tokens"] > 2 for slot in server.call("/slots")[1]["slots"]))
        (busy,) = [slot for slot in server.call("/slots")[1]["slots"] if slot["request_id"] is not None]
        assert (busy["user"], busy["state"], busy["prompt_tokens"]) == ("alice", "decode", 5)
        assert busy["position"] >= 7
        assert busy["tokens_per_s"] > 0
        running.result()
        wait_until(lambda: server.stats.live == 0)
        assert [slot["state"] for slot in server.call("/slots")[1]["slots"]] == ["free"] * 4
        assert server.service.users == {}


def test_the_page_is_told_of_every_specialization(used):
    state = used.call("/state")[1]
    names = [row.name for row in used.program.mock.table.rows]
    assert [row["name"] for row in state["specializations"]] == names
    assert sum(row["steps"] for row in state["specializations"]) == used.stats.steps
    assert state["generated_tokens"] == 24


def test_version_and_the_description_of_the_api(used):
    assert used.call("/version")[1]["version"]
    paths = used.call("/openapi.json")[1]["paths"]
    wanted = {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
    }
    assert wanted | {"/slots", "/version"} <= set(paths)
