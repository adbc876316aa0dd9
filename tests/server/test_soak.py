"""Many clients for a while: the right answers, no slot lost, memory flat, no 500."""

import asyncio
import itertools
import statistics
import time
from pathlib import Path

import pytest
from cli.tiny_chat_llama import save_tiny_llama
from engine.engine_mock import solo_tokens
from server import traffic
from server.live_server import LiveServer, wait_until
from server.scripted_program import EOS, ScriptedProgram, tokenizer
from server.test_process import Served

SLOTS = 16


def test_every_surviving_request_gets_its_solo_answer():
    program = ScriptedProgram(slots=SLOTS, ctx_len=128)
    asks = traffic.mix(300, tokens=256, longest_prompt=40, longest_answer=60)

    def solo(ask):
        tokens, _ = solo_tokens(ask.prompt, ask.max_tokens, ctx_len=128, eos=(EOS,))
        return tokenizer().decode(list(tokens), skip_special_tokens=True)

    with LiveServer(program) as server:
        server.ready()
        report = asyncio.run(traffic.run(int(server.url.rpartition(":")[2]), asks, solo))
        _check(report, asks)
        wait_until(lambda: server.stats.live == 0 and server.stats.waiting == 0)
        assert sum(server.service.responses[status] for status in range(500, 600)) == 0


def _check(report, asks):
    assert report.wrong == []
    assert report.compared == sum(ask.kind in ("whole", "stream") for ask in asks)
    assert set(report.statuses) == {200, 400}
    assert report.statuses[400] == sum(ask.kind == "bad" for ask in asks)
    assert report.left > len(asks) / 10


@pytest.fixture(scope="module")
def cpu_program(tmp_path_factory):
    """Target cpu, 16 slots."""
    from polybatch import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("soak")
    model = AutoModelForCausalLM.from_pretrained(save_tiny_llama(folder / "tiny"))
    return model.compile(
        folder / "tiny.poly",
        batch_size=[1, 2, 4, 8, 16],
        continuous_batching=True,
        full_batch_size=SLOTS,
        ctx_len=256,
        prefill_seq_len=32,
        profile=False,
    )


@pytest.mark.server
@pytest.mark.parametrize("requests", [1000])
def test_a_thousand_requests_of_a_compiled_program(cpu_program, requests, capsys):
    from polybatch import Engine, SamplingParams

    asks = traffic.mix(requests, tokens=256, longest_prompt=120, longest_answer=100)
    with Engine(cpu_program, prefix_cache=False) as engine:
        kept = [ask for ask in asks if ask.kind in ("whole", "stream")]
        answers = {ask: engine.generate(list(ask.prompt), SamplingParams(ask.max_tokens))[0].text for ask in kept}
    with Served(cpu_program.path, "--max-queue", 1000) as served:
        served.wait_until_ready()
        status = Path(f"/proc/{served.process.pid}/status")
        resident: list[tuple[int, float]] = []

        def look(done):
            if done % 5 == 0:
                resident.append((done, _resident_mib(status)))

        started = time.monotonic()
        for _ in range(2):  # the first thousand warms allocators and caches
            resident.clear()
            report = asyncio.run(traffic.run(served.port, asks, answers.__getitem__, progress=look))
            _check(report, asks)
        seconds = time.monotonic() - started
        fifths = [
            statistics.mean(mib for done, mib in resident if requests * at / 5 < done <= requests * (at + 1) / 5)
            for at in range(5)
        ]
        with capsys.disabled():
            print(f"\n{2 * requests} requests in {seconds:.0f} s; {dict(report.statuses)}; MiB by fifth {fifths}")
        assert abs(fifths[4] / fifths[1] - 1) < 0.02
        for _ in itertools.repeat(None, 100):
            slots = served.get("/slots")[1]["slots"]
            if all(slot["request_id"] is None for slot in slots):
                break
            time.sleep(0.05)
        assert [slot["state"] for slot in slots] == ["free"] * SLOTS


def _resident_mib(status):
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
