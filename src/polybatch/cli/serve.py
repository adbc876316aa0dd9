"""``polybatch serve``: a program behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import importlib.util
import logging
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from polybatch.cli.options import ProgramDir, Threads
from polybatch.cli.speculate import FixedK, Speculate, load_speculation
from polybatch.errors import MissingExtraError

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def serve_command(
    directory: ProgramDir,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys, one per line; requests must name one.")
    ] = None,
    allow_unauthenticated: Annotated[
        bool, typer.Option("--allow-unauthenticated", help="Listen beyond loopback without an API key.")
    ] = False,
    model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model in the API; default: that of DIR.")
    ] = None,
    max_queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429.")] = 256,
    request_timeout: Annotated[
        float, typer.Option(min=0.001, metavar="S", help="Seconds from a request's arrival to its last token.")
    ] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds that requests may go on after SIGTERM.")
    ] = 30.0,
    max_body_mib: Annotated[float, typer.Option(min=0.001, help="Largest body of a request, in MiB.")] = 4.0,
    max_choices: Annotated[int, typer.Option(min=1, help="Most answers that one request may ask for.")] = 128,
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Run every prompt whole, even if a slot holds its beginning.")
    ] = False,
    threads: Threads = None,
    speculate: Speculate = None,
    fixed_k: FixedK = None,
) -> None:
    """Serve a program over HTTP in the shapes of OpenAI's API, until SIGTERM or Ctrl-C.

    GET / is a page that shows what runs; GET /docs describes the API.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"polybatch serve needs {', '.join(missing)}: pip install 'polybatch[server]'")
    from polybatch.program import Program
    from polybatch.server.config import ServerConfig
    from polybatch.server.loading import default_name, load_model
    from polybatch.server.run import serve
    from polybatch.server.security import check_bind, read_keys

    keys = () if api_key_file is None else read_keys(api_key_file)
    check_bind(host, keys, allow_unauthenticated=allow_unauthenticated)
    program = Program.load(directory)
    config = ServerConfig(
        model_name=model_name or default_name(directory),
        api_keys=keys,
        max_queue=max_queue,
        request_timeout_s=request_timeout,
        max_body_bytes=int(max_body_mib * (1 << 20)),
        max_choices=max_choices,
        drain_s=drain_timeout,
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    load = partial(
        load_model,
        program,
        config,
        speculation=load_speculation(speculate, fixed_k),
        fixed_k=fixed_k,
        threads=threads,
        prefix_cache=not no_prefix_cache,
    )
    serve(config, load, host=host, port=port, on_listening=lambda url: typer.echo(f"listening on {url}", err=True))
