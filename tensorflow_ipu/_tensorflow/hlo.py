"""HLO, the language that XLA compiles, as messages. `machine/_hlo.py` reads them.

Stands on `tensorflow.compiler.xla.service.hlo_pb2` and `tensorflow.compiler.xla.xla_data_pb2`: nothing public reads HLO.
When they are gone: `hlo.proto` and `xla_data.proto` of the same XLA, compiled by `protoc`.
"""

from __future__ import annotations

from typing import Any

from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

_modules: Any = hlo_pb2
_types: Any = xla_data_pb2

HloModuleProto = _modules.HloModuleProto
PrimitiveType = _types.PrimitiveType
