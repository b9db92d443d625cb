"""Pipeline stages by the names of layers: what files hold."""

from __future__ import annotations

from typing import TypeAlias

from tensorflow_ipu.keras.pipeline.places import Key, Place

# A layer's name, and its stage or, of a model, those of its layers: what JSON has lists for.
Named: TypeAlias = "str | int | list[Named] | None"


def named_stage(place: Place) -> list[Named]:
    """A layer's name with its stage, or a nested model's name with those of its layers."""
    return [
        place.layer.name,
        place.stage if place.children is None else [named_stage(child) for child in place.children],
    ]


def restore_stages(places: list[Place], named: object, stages: dict[Key, int]) -> None:
    """Reads stages that `named_stage` told of an equal model.

    Args:
      places: The layers, or their calls, in the order in which they run.
      named: What was told of each of them.
      stages: Where the stages go, by the keys of places.

    Raises:
      ValueError: The model has other layers, or `named` is no such list.
    """
    if not isinstance(named, list) or any(not isinstance(one, list) or len(one) != 2 for one in named):
        raise ValueError(
            f"pipeline stages should be a list of pairs of a layer's name and its stage, but are `{named!r}`"
        )
    names = [place.layer.name for place in places]
    if names != [name for name, _ in named]:
        raise ValueError(
            f"the file has pipeline stages of the layers {[name for name, _ in named]}, and the model has the layers {names}"
        )
    for place, (_, stage) in zip(places, named, strict=True):
        if place.children is not None and isinstance(stage, list):
            restore_stages(place.children, stage, stages)
        elif type(stage) is int and stage >= 0:
            stages[place.key] = stage
        elif stage is not None:
            raise ValueError(
                f"the pipeline stage of layer `{place.layer.name}` should be a number from 0, but is `{stage!r}`"
            )
