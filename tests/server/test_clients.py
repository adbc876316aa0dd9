"""Clients that are programs of their own: curl, and the example with the openai package."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from server.live_server import LiveServer
from server.scripted_program import ScriptedProgram, chat_prompt

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_client.py"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_reads_a_stream(live):
    live.program.script(chat_prompt("curl"), "hi")
    body = json.dumps({"messages": [{"role": "user", "content": "curl"}], "stream": True, "temperature": 0})
    command = ["curl", "-sSN", "-D", "-", f"{live.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    result = subprocess.run([*command, "-d", body], capture_output=True, text=True, timeout=20, check=True)
    head, _, events = result.stdout.partition("\n\n")
    assert "200 OK" in head
    assert "content-type: text/event-stream" in head
    assert events.endswith("data: [DONE]\n\n")
    assert '"delta":{"content":"h"}' in events


def test_the_example_with_the_openai_package(monkeypatch, capsys):
    program = ScriptedProgram(ctx_len=256)
    program.script(chat_prompt("Name three colours."), "red")
    with LiveServer(program) as server:
        monkeypatch.setattr(sys, "argv", ["openai_client.py", f"{server.ready().url}/v1"])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "one of three: " in capsys.readouterr().out
