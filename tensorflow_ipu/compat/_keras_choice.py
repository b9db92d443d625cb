"""Chooses the Keras of a script, by what the scripts of its folder use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorflow_ipu.compat import _keras_reading
from tensorflow_ipu.compat._keras_reading import KerasFound, Weight
from tensorflow_ipu.compat._project import Project


@dataclass(frozen=True)
class KerasChoice:
    """A choice, and the places that decide it, of which there are none where it is TensorFlow's."""

    version: int
    because: tuple[KerasFound, ...] = ()


def of_folder(project: Project, own: Sequence[KerasFound]) -> list[KerasFound]:
    """Returns what all scripts of a folder need; `own` is what the script of the project needs, with its imports."""
    return [*own, *_keras_reading.needs(project, project.beside)]


def choose(own: Sequence[KerasFound], of_folder: Sequence[KerasFound]) -> KerasChoice:
    """Chooses by what a script needs, and all scripts of its folder.

    All get the same, so that one reads the files that another writes: Keras 2 if any is code for the SDK or uses what only
    Keras 2 has, but Keras 3 if any uses what only Keras 3 has. Where some need the one and some the other, each gets its own.
    """
    of_2, of_3 = _deciding(of_folder, 2), _deciding(of_folder, 3)
    if of_2 and of_3:
        of_2, of_3 = _deciding(own, 2), _deciding(own, 3)
    origins = [need for need in of_folder if need.weight is Weight.ORIGIN]
    if of_3 and not of_2:
        return KerasChoice(3, tuple(of_3) if origins else ())
    return KerasChoice(2, tuple(of_2 or origins)) if of_2 or origins else KerasChoice(3)


def lost(needs: Sequence[KerasFound], version: int) -> list[KerasFound]:
    """Returns what ends a script with this Keras."""
    return [need for need in needs if need.version != version and need.weight is Weight.LOST]


def _deciding(needs: Sequence[KerasFound], version: int) -> list[KerasFound]:
    return [need for need in needs if need.version == version and need.weight in (Weight.DECIDES, Weight.LOST)]
