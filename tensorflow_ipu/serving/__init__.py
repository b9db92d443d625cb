"""Exports of models as SavedModels, which TensorFlow and TensorFlow Serving run without this package."""

from tensorflow_ipu.serving._export import export_keras, export_pipeline, export_single_step

__all__ = ["export_keras", "export_pipeline", "export_single_step"]
