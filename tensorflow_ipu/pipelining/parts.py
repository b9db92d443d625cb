"""What pipelines are made of, for those of Keras, which live on a higher layer."""

from tensorflow_ipu.pipelining._enums import Results

__all__ = ["Results"]
