"""Infeed and outfeed queues between the host and programs, with benchmarks and exports of datasets."""

from tensorflow_ipu.feeds._queue import set_wait_limit, shut_down
from tensorflow_ipu.feeds.dataset_benchmark import BufferDataset, dataset_benchmark, infeed_benchmark
from tensorflow_ipu.feeds.dataset_extractor import (
    dataset_extractor,
    export_dataset_to_file,
    export_inputs_to_file,
    export_variables,
    get_variable_handles,
    import_variables,
)
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue
from tensorflow_ipu.feeds.iterator import IPUIterator, IPUOwnedIterator
from tensorflow_ipu.feeds.outfeed import IPUOutfeedMode, IPUOutfeedQueue, IPUOutfeedQueueIterator, ScopedIPUOutfeedQueue

__all__ = [
    "BufferDataset",
    "IPUInfeedQueue",
    "IPUIterator",
    "IPUOutfeedMode",
    "IPUOutfeedQueue",
    "IPUOutfeedQueueIterator",
    "IPUOwnedIterator",
    "ScopedIPUOutfeedQueue",
    "dataset_benchmark",
    "dataset_extractor",
    "export_dataset_to_file",
    "export_inputs_to_file",
    "export_variables",
    "get_variable_handles",
    "import_variables",
    "infeed_benchmark",
    "set_wait_limit",
    "shut_down",
]
