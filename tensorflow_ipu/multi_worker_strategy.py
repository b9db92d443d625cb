"""`IPUMultiWorkerStrategy` and its aliases, under the SDK's module name."""

from tensorflow_ipu.strategy.workers import IPUMultiWorkerStrategy, IPUMultiWorkerStrategyV1, PopDistStrategy

__all__ = ["IPUMultiWorkerStrategy", "IPUMultiWorkerStrategyV1", "PopDistStrategy"]
