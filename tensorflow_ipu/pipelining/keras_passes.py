"""What pipelines are made of, for those of Keras, which live on a higher layer."""

from tensorflow_ipu.pipelining.prediction.passes import costs_of_passes, passes_of
from tensorflow_ipu.pipelining.report.comparison import Pieces, joined
from tensorflow_ipu.pipelining.schedule.enums import Results

__all__ = ["Pieces", "Results", "costs_of_passes", "joined", "passes_of"]
