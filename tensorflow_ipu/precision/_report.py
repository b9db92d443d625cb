"""What float16 makes of a model: a report that can be read, saved and drawn."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorflow_ipu.precision._figures import Figures
from tensorflow_ipu.precision._scales import Scales, scales_for

SCHEMA = 1

ACTIVATION = "activation"
GRADIENT = "gradient of activation"
WEIGHT = "weight"
WEIGHT_GRADIENT = "gradient of weight"
UPDATE = "update"
KINDS = (ACTIVATION, GRADIENT, WEIGHT, WEIGHT_GRADIENT, UPDATE)
GRADIENTS = (GRADIENT, WEIGHT_GRADIENT)


@dataclass(frozen=True)
class TensorRow:
    """A tensor of the model.

    Attributes:
      layer: The layer that it belongs to; of a function, the scope.
      kind: One of `KINDS`.
      name: What tells it from others of the layer.
      steps: What was counted of it, for each step.
      stuck: Which share of the weights an update was to change, and did not or would not in float16; of updates alone.
    """

    layer: str
    kind: str
    name: str
    steps: tuple[Figures, ...]
    stuck: float = 0.0

    @property
    def total(self) -> Figures:
        """What was counted of it in all steps."""
        total = self.steps[0]
        for each in self.steps[1:]:
            total += each
        return total


@dataclass(frozen=True)
class Trial:
    """The advice, tried on the last of the steps: once more in float16, with the advised scale and layers.

    Attributes:
      scale: The loss scale.
      single: The layers that computed in float32.
      overflowing: How many tensors overflow, of which `tensors` there are.
      vanishing: How many tensors of gradients, of which there are `gradients`, lose more than a hundredth of their numbers
        to 0.
      tensors: How many tensors there are.
      gradients: How many of them are gradients.
    """

    scale: float
    single: tuple[str, ...]
    overflowing: int
    vanishing: int
    tensors: int
    gradients: int


@dataclass(frozen=True)
class PrecisionReport:
    """What float16 made of some steps of a model, beside float32. Print it, `save` it, or ask for `scales` and `advice`.

    Attributes:
      program: The name of the model or function.
      device: Where float16 was computed.
      loss_scale: The scale of the loss in float16.
      rows: The tensors: layer by layer, in the order in which they are computed.
      losses: The loss of each step, in float32 and in float16.
      half_weights: Whether weights are float16.
      trial: The advice, tried; None where there was none to try.
    """

    program: str
    device: str
    loss_scale: float
    rows: tuple[TensorRow, ...]
    losses: tuple[tuple[float, float], ...]
    half_weights: bool = False
    trial: Trial | None = None

    @property
    def steps(self) -> int:
        """How many steps were run."""
        return max((len(row.steps) for row in self.rows), default=0)

    @property
    def scales(self) -> Scales:
        """The loss scales that would fit, by the gradients in float32."""
        return scales_for([row.total for row in self.rows if row.kind in GRADIENTS])

    @property
    def float32_layers(self) -> tuple[str, ...]:
        """The layers that are to compute in float32."""
        if self.trial is not None:
            return self.trial.single
        from tensorflow_ipu.precision import _advice

        return _advice.float32_layers(self)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, a sentence each."""
        from tensorflow_ipu.precision import _advice

        return tuple(_advice.sentences(self))

    def of(self, kinds: Sequence[str]) -> list[TensorRow]:
        """The tensors of some kinds."""
        return [row for row in self.rows if row.kind in kinds]

    def __str__(self) -> str:
        """The report as text."""
        from tensorflow_ipu.precision import _text

        return _text.report_text(self)

    def to_dict(self) -> dict[str, Any]:
        """All of the report in lists, dictionaries, numbers and text; None for a loss that is no finite number."""
        losses = [[loss if math.isfinite(loss) else None for loss in step] for step in self.losses]
        scales = dataclasses.asdict(self.scales)
        return {
            "schema": SCHEMA,
            **dataclasses.asdict(self),
            "losses": losses,
            "scales": scales,
            "advice": [*self.advice],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report.

        Args:
          path: The file: a name that ends in `.json`, which `load` reads; or in `.html`, a page with pictures.

        Raises:
          ValueError: It ends otherwise.
          OSError: It cannot be written.
        """
        file = Path(path)
        if file.suffix == ".json":
            file.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        elif file.suffix == ".html":
            from tensorflow_ipu.precision import _page

            file.write_text(_page.page(self), encoding="utf-8")
        else:
            raise ValueError(f"`path` must end in `.json` or `.html`, but is `{file}`")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> PrecisionReport:
        """Reads a report that was saved as `.json`.

        Raises:
          ValueError: The file holds none, or one of another version.
          OSError: It cannot be read.
        """
        try:
            read = json.loads(Path(path).read_text(encoding="utf-8"))
            if read["schema"] != SCHEMA:
                raise ValueError(
                    f"`{path}` is of version {read['schema']}, and {SCHEMA} is known: make the report anew"
                )
            rows = tuple(_row(each) for each in read["rows"])
            trial = read["trial"]
            return PrecisionReport(
                read["program"],
                read["device"],
                read["loss_scale"],
                rows,
                tuple((_loss(single), _loss(half)) for single, half in read["losses"]),
                read["half_weights"],
                None if trial is None else Trial(**{**trial, "single": tuple(trial["single"])}),
            )
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as exc:
            raise ValueError(f"`{path}` holds no report on precision: {exc!r}") from exc


def _loss(read: float | None) -> float:
    return math.nan if read is None else read


def _row(read: dict[str, Any]) -> TensorRow:
    steps = tuple(Figures(**{**each, "exponents": tuple(each["exponents"])}) for each in read["steps"])
    return TensorRow(read["layer"], read["kind"], read["name"], steps, read["stuck"])
