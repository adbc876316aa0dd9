"""A double of ``QAicApi_pb2``: the message that describes a program's inputs and outputs, from the double's JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace

FLOAT_TYPE = 0
FLOAT_16_TYPE = 1
INT8_Q_TYPE = 2
UINT8_Q_TYPE = 3
INT16_Q_TYPE = 4
INT32_Q_TYPE = 5
INT32_I_TYPE = 6
INT64_I_TYPE = 7
INT8_TYPE = 8
BUFFER_IO_TYPE_INPUT = 0
BUFFER_IO_TYPE_OUTPUT = 1


class IoDesc:
    def ParseFromString(self, data: bytes) -> None:
        described = json.loads(data)
        self.allowed_shapes = [
            SimpleNamespace(shapes=[SimpleNamespace(type=kind, dims=dims) for kind, dims in row])
            for row in described["allowed_shapes"]
        ]
        self.selected_set = SimpleNamespace(bindings=[SimpleNamespace(**entry) for entry in described["bindings"]])
