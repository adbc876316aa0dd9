"""schemathesis against the server's own OpenAPI description: no 500 and no hang."""

import os
import subprocess
import sys

import pytest
from server.live_server import LiveServer
from server.scripted_program import ScriptedProgram

SECONDS = int(os.environ.get("POLYBATCH_FUZZ_SECONDS", "60"))


@pytest.mark.server
@pytest.mark.timeout(SECONDS + 300)
def test_no_request_makes_a_server_error_or_hangs(tmp_path):
    with LiveServer(ScriptedProgram(slots=4, ctx_len=128), request_timeout_s=20) as server:
        server.ready()
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
        command += [
            "--checks",
            "not_a_server_error",
            "--request-timeout",
            "30",
            "--no-color",
            "--max-time",
            str(SECONDS),
        ]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS + 240, check=False
        )
        print(result.stdout[-3000:], result.stderr[-1000:])
        assert result.returncode == 0
        assert sum(server.service.responses.values()) > 100
        assert sum(server.service.responses[status] for status in range(500, 600)) == 0
        assert server.stats.live == 0
