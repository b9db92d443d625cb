"""What users export: a step, the stages of a pipeline, a Keras model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu.serving import _saved_model, serving_steps

if TYPE_CHECKING:
    import keras

    from tensorflow_ipu._base.types import Nested

Signature = Sequence[tf.TensorSpec]


def of_steps(
    predict_step: Callable[..., Nested],
    predict_step_signature: Signature | None,
    input_dataset: tf.data.Dataset | None,
    preprocessing_step: Callable[..., Nested] | None,
    preprocessing_step_signature: Signature | None,
    constants: int = 0,
) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    """The signature of requests, and that of the step which predicts; without a step before it, they are the same."""
    first = "predict_step" if preprocessing_step is None else "preprocessing_step"
    given = predict_step_signature if preprocessing_step is None else preprocessing_step_signature
    if input_dataset is not None:
        if not isinstance(input_dataset, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
            raise TypeError(f"`input_dataset` must be a `tf.data.Dataset`, but is {input_dataset!r}")
        if given is not None:
            raise ValueError(
                f"both `{first}_signature` and `input_dataset` are given, and each says what requests are: leave one out"
            )
        element: Any = input_dataset.element_spec
        given = (element,) if isinstance(element, tf.TensorSpec) else element
        if not isinstance(given, (list, tuple)):
            raise TypeError(
                f"the elements of `input_dataset` must be tensors or tuples of them, but are {element!r}: map them, or give"
                f" `{first}_signature`"
            )
    if preprocessing_step is None:
        of_predict = _named("predict_step", predict_step, given, constants)
        return of_predict, of_predict
    requests = _named("preprocessing_step", preprocessing_step, given, 0)
    return requests, _named("predict_step", predict_step, predict_step_signature, constants)


def _named(argument: str, step: Callable[..., Nested], given: Signature | None, constants: int) -> list[tf.TensorSpec]:
    """A signature with the names of the function's arguments, as requests give them by name."""
    if given is None and not getattr(step, "input_signature", None):
        raise ValueError(
            f"what `{argument}` takes cannot be told from it: give `{argument}_signature`, a list of `tf.TensorSpec`, or make"
            f" it a `tf.function` with an `input_signature`"
            + ("" if argument == "predict_step" and constants else "; an `input_dataset` of requests tells it as well")
        )
    specs = serving_steps.signature(argument, step, given)
    known = _parameters(step)
    if known is None:
        names = [spec.name or f"input_{at}" for at, spec in enumerate(specs)]
    else:
        names, needed = known[0][constants:], max(0, known[1] - constants)
        if len(specs) > len(names) and len(specs) == len(names) + constants:
            specs = specs[constants:]  # Of a `tf.function`, whose signature has the constants too.
        names = names[: max(needed, len(specs))]  # Others have defaults.
    if len(specs) != len(names):
        raise ValueError(
            f"`{argument}_signature` has {len(specs)} entries, and `{argument}` takes {len(names)} arguments"
            f" ({', '.join(names)})" + (f" besides the {constants} of `inputs`" if constants else "")
        )
    for name, spec in zip(names, specs, strict=True):
        if argument == "predict_step" and not spec.shape.is_fully_defined():
            raise ValueError(
                f"`{name}` of `{argument}` has shape {spec.shape}, and a program for an IPU has static shapes: state all of"
                " its dimensions, the batch's too"
            )
    return [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in zip(names, specs, strict=True)]


def _parameters(step: Callable[..., Nested]) -> tuple[list[str], int] | None:
    """The names of a function's arguments, and how many it needs; None where it does not say, or takes any number."""
    function = getattr(step, "python_function", step)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [one for one in parameters if one.kind in kinds]
    return [one.name for one in found], sum(one.default is one.empty for one in found)


_Step = Callable[..., "Nested"]
_Signature = Sequence[tf.TensorSpec]


def export_single_step(
    predict_step: _Step,
    export_dir: str | os.PathLike[str],
    iterations: int,
    predict_step_signature: _Signature | None = None,
    input_dataset: tf.data.Dataset | None = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: _Step | None = None,
    preprocessing_step_signature: _Signature | None = None,
    postprocessing_step: _Step | None = None,
    postprocessing_step_signature: _Signature | None = None,
    purge_export_dir: bool = False,
) -> Callable[..., dict[str, tf.Tensor]]:
    """Exports a function as a SavedModel, for TensorFlow Serving on a CPU. Who loads it needs no part of this package.

    A request brings one element, of the signature's static shapes, batch included, and is answered by what one call of the
    function makes of it. Variables have the values that they have now.

    Args:
      predict_step: A function of tensors, or a `tf.function`.
      export_dir: An empty folder, or one to be made.
      iterations: How many requests the machine's program answers before it begins anew, 1 or more; answers do not depend on
        it.
      predict_step_signature: A `tf.TensorSpec` for each of the function's arguments. It may be omitted where the function
        is a `tf.function` with an `input_signature`, or without a `preprocessing_step`, where `input_dataset` tells.
      input_dataset: A dataset of requests, in the place of the signature of the first step.
      output_names: The name of each output, as a string or a list of them; `output_0` and so on if omitted.
      preprocessing_step: A function from the request's tensors, of any type, to what `predict_step` takes.
      preprocessing_step_signature: The `tf.TensorSpec` of the request's tensors then.
      postprocessing_step: A function from what `predict_step` returns to the answer.
      postprocessing_step_signature: The `tf.TensorSpec` of its inputs, to be checked.
      purge_export_dir: Whether to delete what `export_dir` has.

    Returns:
      The function that is served: of the request's tensors, to a dict of outputs by name.

    Raises:
      RuntimeError: A graph of TensorFlow 1 is being built.
      TypeError: A signature, a name or the dataset is of a wrong kind.
      ValueError: A signature cannot be inferred or is given twice, a shape is not static, `export_dir` is not empty, or steps,
        outputs and names do not fit together.
    """
    _check_iterations(iterations)
    requests, of_predict = of_steps(
        predict_step, predict_step_signature, input_dataset, preprocessing_step, preprocessing_step_signature
    )
    return _saved_model.write(
        predict_step,
        (preprocessing_step, postprocessing_step),
        requests,
        of_predict,
        export_dir,
        output_names,
        postprocessing_step_signature,
        purge_export_dir,
    )


def export_pipeline(
    computational_stages: Sequence[_Step | Sequence[_Step]],
    export_dir: str | os.PathLike[str],
    iterations: int,
    inputs: Nested = None,
    device_mapping: Sequence[int | Sequence[int]] | None = None,
    pipeline_schedule: pipelining.PipelineSchedule | None = None,
    poplar_options: Sequence[pipelining.PipelineStageOptions] | None = None,
    name: str | None = None,
    predict_step_signature: _Signature | None = None,
    input_dataset: tf.data.Dataset | None = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: _Step | None = None,
    preprocessing_step_signature: _Signature | None = None,
    postprocessing_step: _Step | None = None,
    postprocessing_step_signature: _Signature | None = None,
    purge_export_dir: bool = False,
) -> Callable[..., dict[str, tf.Tensor]]:
    """Exports the stages of a pipeline as a SavedModel, as `export_single_step` does a function.

    The plan is checked as that of `pipelining.pipeline`; the model serves the stages one after the other.

    Args:
      computational_stages: The stages, as for `pipelining.pipeline`.
      export_dir: An empty folder, or one to be made.
      iterations: How many requests are in a pass of the pipeline, as its `gradient_accumulation_count`: on the machine the
        first is answered when the last has come. Answers do not depend on it.
      inputs: The first arguments of the first stage, the same for each request.
      device_mapping: For each stage its IPU; see `pipelining.pipeline`.
      pipeline_schedule: In which order the IPUs work; Grouped if omitted.
      poplar_options: For each stage a `PipelineStageOptions`, checked.
      name: A name for the function that is served.
      predict_step_signature: A `tf.TensorSpec` for each further argument of the first stage.
      input_dataset: As for `export_single_step`.
      output_names: As for `export_single_step`.
      preprocessing_step: As for `export_single_step`.
      preprocessing_step_signature: As for `export_single_step`.
      postprocessing_step: As for `export_single_step`.
      postprocessing_step_signature: As for `export_single_step`.
      purge_export_dir: As for `export_single_step`.

    Returns:
      The function that is served.

    Raises:
      RuntimeError: As for `export_single_step`.
      TypeError: As for `export_single_step`, or an argument of the pipeline is of a wrong kind.
      ValueError: As for `export_single_step`, or arguments of the pipeline do not fit together.
      tf.errors.FailedPreconditionError: `iterations` is no multiple of what the schedule needs.
    """
    _check_iterations(iterations)
    if not isinstance(computational_stages, (list, tuple)):
        raise TypeError(f"`computational_stages` must be a list or tuple of functions, but is {computational_stages!r}")
    stages: list[Any] = [list(stage) if isinstance(stage, (list, tuple)) else [stage] for stage in computational_stages]
    for at, parts in enumerate(stages):
        if not parts or not all(map(callable, parts)):
            raise TypeError(f"`computational_stages[{at}]` must be a function, but is {computational_stages[at]!r}")
    schedule = pipelining.PipelineSchedule.Grouped if pipeline_schedule is None else pipeline_schedule
    pipelining.pipeline_plan(len(stages), iterations, schedule, device_mapping=device_mapping, training=False)
    _check_options(poplar_options, len(stages))
    constants = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]

    def predict(*values: tf.Tensor) -> Nested:
        results: Nested = [*constants, *values]
        for parts in stages:
            results = _joined([_call(part, results) for part in parts])
        return results

    if name is not None:
        predict.__name__ = name
    requests, of_predict = of_steps(
        stages[0][0],
        predict_step_signature,
        input_dataset,
        preprocessing_step,
        preprocessing_step_signature,
        len(constants),
    )
    return _saved_model.write(
        predict,
        (preprocessing_step, postprocessing_step),
        requests,
        of_predict,
        export_dir,
        output_names,
        postprocessing_step_signature,
        purge_export_dir,
    )


def export_keras(
    model: keras.Model,
    export_dir: str | os.PathLike[str],
    batch_size: int | None = None,
    output_names: str | list[str] | None = None,
    preprocessing_step: _Step | None = None,
    preprocessing_step_signature: _Signature | None = None,
    postprocessing_step: _Step | None = None,
    postprocessing_step_signature: _Signature | None = None,
    purge_export_dir: bool = False,
) -> Callable[..., dict[str, tf.Tensor]]:
    """Exports a Keras model as a SavedModel: its method `export_for_ipu_serving`, which has the arguments and errors.

    Args:
      model: A model that was made in a strategy's scope.
      export_dir: As for the method.
      batch_size: As for the method.
      output_names: As for the method.
      preprocessing_step: As for the method.
      preprocessing_step_signature: As for the method.
      postprocessing_step: As for the method.
      postprocessing_step_signature: As for the method.
      purge_export_dir: As for the method.

    Returns:
      The function that is served.

    Raises:
      ValueError: The model was made outside of a strategy's scope; or as for the method.
    """
    export: Any = getattr(model, "export_for_ipu_serving", None)
    if export is None:
        raise ValueError(
            f"`model` is {model!r}, which was made outside of an IPU strategy: make it in `with strategy.scope():`"
        )
    return export(
        export_dir,
        batch_size,
        output_names,
        preprocessing_step,
        preprocessing_step_signature,
        postprocessing_step,
        postprocessing_step_signature,
        purge_export_dir,
    )


def _check_iterations(iterations: object) -> None:
    if not is_int(iterations):
        raise TypeError(f"`iterations` must be a whole number, but is {iterations!r}")
    if iterations < 1:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"`iterations` must be 1 or more, but is {iterations}")


def _check_options(options: object, stages: int) -> None:
    if options is None:
        return
    if not isinstance(options, (list, tuple)) or not all(
        isinstance(one, pipelining.PipelineStageOptions) for one in options
    ):
        raise TypeError(f"`poplar_options` must be a list of `PipelineStageOptions`, but is {options!r}")
    if len(options) != stages:
        raise ValueError(f"`poplar_options` has {len(options)} entries, and there are {stages} stages")


def _call(stage: _Step, results: Nested) -> Nested:
    """Calls a stage with what the one before returned, as `pipelining.pipeline` does."""
    if isinstance(results, Mapping):
        return stage(**results)
    return stage(*results) if isinstance(results, (list, tuple)) else stage(results)


def _joined(results: list[Nested]) -> Nested:
    """What the concurrent parts of a stage return, one after the other."""
    if len(results) == 1:
        return results[0]
    return [one for result in results for one in (result if isinstance(result, (list, tuple)) else [result])]
