"""Which peers can be open at the same time: a KV cache for 128 sequences of 2048 positions is gigabytes for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.peers.catalog import OURS, PEERS

RESERVE_BYTES = 3 << 30
ENGINE_BYTES = 1 << 30
WEIGHT_COPIES = 3  # loaded, converted and packed ones live side by side for a while


def available_bytes() -> int:
    """What the kernel says can be taken without swapping."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return kilobytes << 10


def position_bytes(model: Path, precision: str) -> int:
    """Keys and values of one position of one sequence, in all layers."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    elements: int = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    return elements * element_bytes(precision)


def element_bytes(precision: str) -> int:
    """Of keys and values; int8 is about weights only."""
    return 4 if precision == "fp32" else 2


def peer_bytes(name: str, model: Path, precision: str, slots: int, ctx_len: int, position: int) -> int:
    """A generous estimate of the memory that one peer takes."""
    positions = ctx_len if PEERS[name].touches_cache else position + 64
    weight_bytes = (model / "model.safetensors").stat().st_size * element_bytes(precision) // 2
    return slots * positions * position_bytes(model, precision) + WEIGHT_COPIES * weight_bytes + ENGINE_BYTES


def group(sizes: dict[str, int], budget: int) -> list[list[str]]:
    """Peers in as few groups as fit into ``budget`` bytes, first come first served; ours is in every group."""
    ours = {name: size for name, size in sizes.items() if name == OURS}
    others = {name: size for name, size in sizes.items() if name != OURS}
    groups: list[list[str]] = []
    for name, size in others.items():
        for members in groups:
            if _total(members, sizes) + size <= budget:
                members.append(name)
                break
        else:
            groups.append([*ours, name])
    return groups or [list(ours)]


def _total(members: Sequence[str], sizes: dict[str, int]) -> int:
    return sum(sizes[member] for member in members)
