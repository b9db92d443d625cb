"""`IPUStrategy`: places variables on an IPU device, runs programs, and predicts their cost on a machine."""

from tensorflow_ipu.strategy.ipu_strategy import IPUStrategy, IPUStrategyV1, report

__all__ = ["IPUStrategy", "IPUStrategyV1", "report"]
