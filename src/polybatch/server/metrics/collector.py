"""Everything that /metrics says, read from the engine and the server when a scrape comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from polybatch.engine import EngineStats
from polybatch.server.metrics.latency import Histogram
from polybatch.server.model import ServedModel

if TYPE_CHECKING:
    from polybatch.server.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTED_REASONS = ("stop", "length", "abort", "timeout", "error")
_HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "Arrival to first token.", "to_first_token"),
    ("vllm:inter_token_latency_seconds", "Time between tokens of one sequence.", "between_tokens"),
    ("vllm:e2e_request_latency_seconds", "Arrival to last token.", "whole_request"),
    ("vllm:request_prompt_tokens", "Tokens of prompts.", "prompt_tokens"),
    ("vllm:request_generation_tokens", "Tokens of answers.", "generated_tokens"),
)


class EngineCollector:
    """A collector of prometheus_client. Nothing is counted here: it reads."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        model = self._service.model
        responses = CounterMetricFamily("polybatch:http_responses", "Responses by status.", labels=["status"])
        for status, count in sorted(self._service.responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        if model is None:
            return
        stats = model.engine.stats
        yield from _load(model, stats)
        yield from _totals(model, stats)
        yield from _steps(model, stats)
        yield from _speculation(model, stats)
        for name, text, attribute in _HISTOGRAMS:
            yield _histogram(name, text, model.name, getattr(self._service.latencies, attribute))


def exposition(service: Service) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(service))
    return generate_latest(registry)


def _gauge(name: str, text: str, model: ServedModel, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["model_name"])
    family.add_metric([model.name], value)
    return family


def _counter(name: str, text: str, model: ServedModel, value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["model_name"])
    family.add_metric([model.name], value)
    return family


def _load(model: ServedModel, stats: EngineStats) -> Iterator[Metric]:
    cached = sum(slot.position for slot in model.engine.slots() if slot.request_id is not None)
    yield _gauge("vllm:num_requests_running", "Requests that hold a slot.", model, stats.live)
    yield _gauge("vllm:num_requests_waiting", "Requests in the queue.", model, stats.waiting)
    share = cached / (model.slots * model.ctx_len)
    yield _gauge("vllm:kv_cache_usage_perc", "Share of the cache that running requests fill, 0 to 1.", model, share)
    slots = GaugeMetricFamily("polybatch:slots", "Slots of the cache by state.", labels=["model_name", "state"])
    slots.add_metric([model.name, "free"], model.slots - stats.live)
    slots.add_metric([model.name, "live"], stats.live)
    yield slots


def _totals(model: ServedModel, stats: EngineStats) -> Iterator[Metric]:
    yield _counter("vllm:prompt_tokens", "Prompt tokens run.", model, stats.prompt_tokens)
    yield _counter("vllm:generation_tokens", "Tokens generated.", model, stats.generated_tokens)
    # vLLM counts, as queries, the tokens that were looked up: here those that were run and those that need not be.
    looked_up = stats.prompt_tokens + stats.reused_tokens
    yield _counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", model, looked_up)
    yield _counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", model, stats.reused_tokens)
    yield _counter("polybatch:prefix_hits", "Requests that began with a cached prefix.", model, stats.prefix_hits)
    yield _counter("polybatch:failed_steps", "Steps that raised.", model, stats.failed_steps)
    ended = CounterMetricFamily(
        "vllm:request_success", "Requests ended, by reason.", labels=["model_name", "finished_reason"]
    )
    for reason in _COUNTED_REASONS:
        ended.add_metric([model.name, reason], stats.finished.get(reason, 0))
    yield ended


def _steps(model: ServedModel, stats: EngineStats) -> Iterator[Metric]:
    """What the table of specializations did: nothing else on the market says this."""
    labels = ["model_name", "phase", "batch", "k", "ccl"]
    steps = CounterMetricFamily("polybatch:steps", "Steps by specialization.", labels=labels)
    rows = CounterMetricFamily("polybatch:step_rows", "Live rows of steps.", labels=labels)
    padding = CounterMetricFamily("polybatch:step_padding_rows", "Padding rows of steps.", labels=labels)
    seconds = CounterMetricFamily("polybatch:step_seconds", "Seconds spent in steps.", labels=labels)
    for row in stats.specializations.values():
        ccl = model.ctx_len if row.comp_ctx_length is None else row.comp_ctx_length
        values = [model.name, row.phase, str(row.batch_size), str(row.num_speculative_tokens), str(ccl)]
        steps.add_metric(values, row.steps)
        rows.add_metric(values, row.live_rows)
        padding.add_metric(values, row.padding_rows)
        seconds.add_metric(values, row.seconds)
    yield from (steps, rows, padding, seconds)


def _speculation(model: ServedModel, stats: EngineStats) -> Iterator[Metric]:
    if (done := stats.speculation) is None:
        return
    yield _counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens verified.", model, done.drafted)
    yield _counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted.", model, done.accepted)
    labels = ["model_name", "position"]
    accepted = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted, by position in the proposal.", labels=labels
    )
    drafted = CounterMetricFamily(
        "polybatch:spec_decode_num_draft_tokens_per_pos", "Verified, by position in the proposal.", labels=labels
    )
    for position, (tried, kept) in enumerate(zip(done.drafted_at, done.accepted_at, strict=True)):
        drafted.add_metric([model.name, str(position)], tried)
        accepted.add_metric([model.name, str(position)], kept)
    yield from (accepted, drafted)


def _histogram(name: str, text: str, model_name: str, values: Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=["model_name"])
    family.add_metric([model_name], values.cumulative(), values.sum)
    return family
