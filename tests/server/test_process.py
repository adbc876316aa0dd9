"""``polybatch serve`` as a process: start, signals, exit codes."""

import http.client
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from cli.eager_program import compile_eager
from cli.tiny_chat_llama import save_tiny_llama

COMMAND = [sys.executable, "-c", "from polybatch.cli import main; main()", "serve"]


@pytest.fixture(scope="module")
def program_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    return compile_eager(save_tiny_llama(folder / "tiny"), folder / "tiny.poly", "--batch-size", "1,2,4")


class Served:
    """The process; it listens at once and is ready later."""

    def __init__(self, *args):
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, args), "--port", "0", "--threads", "1"], stderr=subprocess.PIPE, text=True
        )
        line = self.process.stderr.readline()
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert found, line + self.process.stderr.read()
        self.port = int(found[1])

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def wait_until_ready(self):
        states = set()
        while True:
            status, body = self.get("/health")
            states.add(body["status"])
            if status == 200:
                return states
            assert self.process.poll() is None
            time.sleep(0.02)

    def post(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_it_listens_before_it_is_ready_and_ends_with_0_after_what_runs(program_dir):
    with Served(program_dir) as served:
        assert "loading" in served.wait_until_ready()
        assert served.get("/v1/models")[1]["data"][0]["id"] == "tiny"
        body = {"prompt": "Hello", "max_tokens": 150, "ignore_eos": True, "temperature": 0}
        whole, stream = served.post(body), served.post(body | {"stream": True})
        response = stream.getresponse()
        assert response.readline().startswith(b"data: ")
        served.process.send_signal(signal.SIGTERM)
        answer = json.loads(whole.getresponse().read())
        assert answer["usage"]["completion_tokens"] == 150
        assert response.read().endswith(b"data: [DONE]\n\n")
        whole.close()
        stream.close()
        assert served.process.wait(20) == 0
        assert served.process.stderr.read() == ""


def test_ctrl_c_while_loading_ends_it(program_dir):
    with Served(program_dir) as served:
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(30) == 0


def run(*args):
    return subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, timeout=60, check=False)


def test_it_does_not_listen_to_strangers_without_a_key(program_dir):
    result = run(program_dir, "--host", "0.0.0.0")
    assert result.returncode == 2
    assert re.fullmatch(r"error: --host 0\.0\.0\.0 lets other machines in.*\n", result.stderr)


def test_a_program_that_is_not_there_is_one_line(tmp_path):
    result = run(tmp_path / "nothing")
    assert result.returncode == 2
    assert re.fullmatch(r"error: there is no program at .*\n", result.stderr)


def test_a_port_that_is_taken_is_one_line(program_dir):
    from polybatch.server.run import listen

    with listen("127.0.0.1", 0) as taken:
        result = run(program_dir, "--port", taken.getsockname()[1])
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_what_fails_in_loading_is_one_line_too(program_dir):
    result = run(program_dir, "--port", 0, "--speculate", "lookup")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr
