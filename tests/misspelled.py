"""Misspelled names that `make lint` must report: Pyright fails if one is no longer an error. Nothing runs this file."""

# pyright: reportCallIssue=true, reportUnnecessaryTypeIgnoreComment=true

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import IPUStrateg  # pyright: ignore[reportAttributeAccessIssue]


def of_the_configuration(config: ipu.IPUConfig) -> list[object]:
    config.auto_select_ipu = 1  # pyright: ignore[reportAttributeAccessIssue]
    config.convolutions.partial_type = "half"  # pyright: ignore[reportAttributeAccessIssue]
    config.optimizations.math.fast_maths = True  # pyright: ignore[reportAttributeAccessIssue]
    config.configure_ipu()  # pyright: ignore[reportAttributeAccessIssue]
    return [config.io_tile]  # pyright: ignore[reportAttributeAccessIssue]


def of_modules() -> list[object]:
    return [
        IPUStrateg,
        ipu.pipelinig,  # pyright: ignore[reportAttributeAccessIssue]
        ipu.compat.instal,  # pyright: ignore[reportAttributeAccessIssue]
        ipu.keras.PipelineStages,  # pyright: ignore[reportAttributeAccessIssue]
        ipu.pipelining.plan_cots,  # pyright: ignore[reportAttributeAccessIssue]
        ipu.precision.Figure,  # pyright: ignore[reportAttributeAccessIssue]
    ]


def of_arguments(dataset: tf.data.Dataset) -> list[object]:
    return [
        ipu.IPUInfeedQueue(dataset, prefetch_dept=1),  # pyright: ignore[reportCallIssue]
        ipu.IPUStrategy(0, host_kernel=False),  # pyright: ignore[reportCallIssue]
        ipu.config.configure_ipu_system(ipu.IPUConfig(), reset=True),  # pyright: ignore[reportCallIssue]
    ]
