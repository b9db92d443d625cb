"""The strategy: its scope, its programs, its workers, and the report of a program."""

from tensorflow_ipu.strategy.ipu_strategy import IPUStrategy, IPUStrategyV1, report

__all__ = ["IPUStrategy", "IPUStrategyV1", "report"]
