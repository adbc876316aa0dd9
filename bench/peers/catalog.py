"""The peers: which environment and worker each has, and what it is set to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.install import RECIPES, environment_python, installed

OURS = "polybatch"


@dataclass(frozen=True)
class PeerInfo:
    """environment: a name of ``install.RECIPES``, "" for the interpreter that runs the driver.

    precisions: those it has. touches_cache: its KV cache takes its full size in memory, used or not.
    """

    title: str
    environment: str
    precisions: tuple[str, ...] = ("bf16", "fp32", "int8")
    touches_cache: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


PEERS = {
    OURS: PeerInfo("polybatch", ""),
    "llama_cpp": PeerInfo("llama.cpp", "llama_cpp"),
    "openvino": PeerInfo("OpenVINO PagedAttention", "openvino", touches_cache=False),
    "openvino_genai": PeerInfo("OpenVINO GenAI", "openvino", touches_cache=False),
    "vllm": PeerInfo("vLLM", "vllm", ("bf16", "fp32"), variables={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
}


def worker_python(name: str, cache: Path) -> Path:
    """The interpreter that runs the worker of this peer."""
    environment = PEERS[name].environment
    return environment_python(environment, cache) if environment else Path(sys.executable)


def why_missing(name: str, cache: Path) -> str:
    """Why a peer cannot be measured, or "" when it is installed."""
    environment = PEERS[name].environment
    if not environment:
        return ""
    assert environment in RECIPES
    problem = installed(cache).get(environment)
    if problem is None:
        return f"not installed; run python -m bench.peers.install --peers {environment}"
    return f"could not be installed: {problem}" if problem else ""
