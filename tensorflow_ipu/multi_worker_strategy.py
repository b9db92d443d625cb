"""`IPUMultiWorkerStrategy` and its other names, under the module name that the SDK has."""

from tensorflow_ipu.strategy.workers import IPUMultiWorkerStrategy, IPUMultiWorkerStrategyV1, PopDistStrategy

__all__ = ["IPUMultiWorkerStrategy", "IPUMultiWorkerStrategyV1", "PopDistStrategy"]
