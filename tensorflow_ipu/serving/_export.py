"""Exports of a step, the stages of a pipeline, and a Keras model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.serving import serving_steps

if TYPE_CHECKING:
    import keras


def write(
    predict: Callable[..., Nested],
    steps: Sequence[Callable[..., Nested] | None],
    requests: Sequence[tf.TensorSpec],
    of_predict: Sequence[tf.TensorSpec],
    export_dir: str | os.PathLike[str],
    output_names: str | list[str] | None,
    postprocessing_step_signature: Sequence[tf.TensorSpec] | None,
    purge_export_dir: bool,
) -> Callable[..., dict[str, tf.Tensor]]:
    """Writes a SavedModel of one signature, and reads it back."""
    if not tf.executing_eagerly():
        raise RuntimeError("models are exported in eager execution, and a graph is being built: export outside of it")
    before, after = steps
    names = serving_steps.names(output_names)
    if after is not None and postprocessing_step_signature is not None:
        serving_steps.check_signature("postprocessing_step_signature", postprocessing_step_signature)

    def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        values: Nested = arguments
        if before is not None:
            values = serving_steps.checked("`preprocessing_step`", before(*values), of_predict)
        results = serving_steps.checked("`predict_step`", predict(*values), postprocessing_step_signature)
        if after is not None:
            results = serving_steps.checked("`postprocessing_step`", after(*results), None)
        return serving_steps.named(results, names)

    module: Any = tf.Module()
    module.predict = tf.function(serve, input_signature=list(requests))
    # So that the graph names no IPU, whatever scope is around.
    with tf.device(None):
        traced = module.predict.get_concrete_function()
    _refuse_operations_of_ours(traced.graph)
    module.used = [*traced.graph.variables, *_used_by(predict), *_used_by(before), *_used_by(after)]
    folder = serving_steps.prepared_folder(export_dir, purge_export_dir)
    tf.saved_model.save(module, str(folder), signatures=module.predict)
    loaded: Any = tf.saved_model.load(str(folder))
    loaded.predict.model = loaded  # Its variables live as long as it does.
    return loaded.predict


def _refuse_operations_of_ours(graph: tf.Graph) -> None:
    """Refuses operations that only IPU programs have, with which plain TensorFlow would not load the model."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    found = sorted({node.op for node in nodes if node.op.startswith("Ipu")})
    if found:
        raise ValueError(
            f"the model uses {', '.join(f'`{one}`' for one in found)}, which only programs on IPUs have, and TensorFlow serves"
            " it without: leave collectives, queues and parts of the host out of what is exported"
        )


def _used_by(step: Callable[..., Nested] | None) -> Iterator[Any]:
    """Yields tables and modules that a function has from around it, for the SavedModel to hold."""
    function: Any = getattr(step, "python_function", step)
    if not inspect.isroutine(function):
        if isinstance(function, tf.Module):
            yield function
        return
    owner = getattr(function, "__self__", None)
    try:
        around = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # A function of C.
        return
    for value in (owner, *around.nonlocals.values(), *around.globals.values()):
        if isinstance(value, (tf.Module, tf.lookup.StaticHashTable, tf.lookup.experimental.DenseHashTable)):
            yield value
        elif callable(value) and hasattr(value, "python_function"):
            yield from _used_by(value)


_Step = Callable[..., "Nested"]
_Signature = Sequence[tf.TensorSpec]


def of_steps(
    predict_step: Callable[..., Nested],
    predict_step_signature: _Signature | None,
    input_dataset: tf.data.Dataset | None,
    preprocessing_step: Callable[..., Nested] | None,
    preprocessing_step_signature: _Signature | None,
    constants: int = 0,
) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    """Returns the signatures of requests and of the step that predicts; equal without preprocessing."""
    first = "predict_step" if preprocessing_step is None else "preprocessing_step"
    signature = predict_step_signature if preprocessing_step is None else preprocessing_step_signature
    if input_dataset is not None:
        if not isinstance(input_dataset, tf.data.Dataset):
            raise TypeError(f"`input_dataset` must be a `tf.data.Dataset`, but is {input_dataset!r}")
        if signature is not None:
            raise ValueError(
                f"both `{first}_signature` and `input_dataset` are given, and each says what requests are: leave one out"
            )
        element: Any = input_dataset.element_spec
        signature = (element,) if isinstance(element, tf.TensorSpec) else element
        if not isinstance(signature, (list, tuple)):
            raise TypeError(
                f"the elements of `input_dataset` must be tensors or tuples of them, but are {element!r}: map them, or give"
                f" `{first}_signature`"
            )
    if preprocessing_step is None:
        of_predict = _named("predict_step", predict_step, signature, constants)
        return of_predict, of_predict
    requests = _named("preprocessing_step", preprocessing_step, signature, 0)
    return requests, _named("predict_step", predict_step, predict_step_signature, constants)


def _named(
    argument: str, step: Callable[..., Nested], signature: _Signature | None, constants: int
) -> list[tf.TensorSpec]:
    if signature is None and not getattr(step, "input_signature", None):
        raise ValueError(
            f"what `{argument}` takes cannot be told from it: give `{argument}_signature`, a list of `tf.TensorSpec`, or make"
            f" it a `tf.function` with an `input_signature`"
            + ("" if argument == "predict_step" and constants else "; an `input_dataset` of requests tells it as well")
        )
    specs = serving_steps.signature(argument, step, signature)
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
    """Returns the names of a function's arguments, and how many it needs; None if it does not say, or takes any number."""
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
    """Exports a function as a SavedModel that TensorFlow Serving runs on a CPU without this package.

    A request brings one element, of the signature's static shapes, batch included, and is answered by one call of the
    function. Variables have the values that they have now.

    Args:
      predict_step: A function of tensors, or a `tf.function`.
      export_dir: An empty folder, or one to be made.
      iterations: How many requests the machine's program answers in a run, 1 or more; answers do not depend on it.
      predict_step_signature: A `tf.TensorSpec` for each of the function's arguments. It may be omitted for a
        `tf.function` with an `input_signature`, or, without a `preprocessing_step`, where `input_dataset` tells.
      input_dataset: A dataset of requests, in the place of the signature of the first step.
      output_names: The name of each output, as a string or a list of them; `output_0` and so on if omitted.
      preprocessing_step: A function from the request's tensors, of any type, to what `predict_step` takes.
      preprocessing_step_signature: The `tf.TensorSpec` of the request's tensors then.
      postprocessing_step: A function from what `predict_step` returns to the answer.
      postprocessing_step_signature: The `tf.TensorSpec` of its inputs, to be checked.
      purge_export_dir: Whether to delete what `export_dir` has.

    Returns:
      The function that is served, from the request's tensors to a dict of outputs by name.

    Raises:
      RuntimeError: A graph of TensorFlow 1 is being built.
      TypeError: A signature, a name or the dataset is of a wrong kind.
      ValueError: A signature cannot be inferred or is there twice, a shape is not static, `export_dir` is not empty, or
        steps, outputs and names do not fit together.
    """
    _check_iterations(iterations)
    requests, of_predict = of_steps(
        predict_step, predict_step_signature, input_dataset, preprocessing_step, preprocessing_step_signature
    )
    steps, output = (preprocessing_step, postprocessing_step), (output_names, postprocessing_step_signature)
    return write(predict_step, steps, requests, of_predict, export_dir, *output, purge_export_dir)


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
      input_dataset: As for `export_single_step`, as are those below.
      output_names: See above.
      preprocessing_step: See above.
      preprocessing_step_signature: See above.
      postprocessing_step: See above.
      postprocessing_step_signature: See above.
      purge_export_dir: See above.

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
    if poplar_options is not None:
        kind: Any = pipelining.PipelineStageOptions
        if not isinstance(poplar_options, (list, tuple)) or not all(isinstance(one, kind) for one in poplar_options):
            raise TypeError(f"`poplar_options` must be a list of `PipelineStageOptions`, but is {poplar_options!r}")
        if len(poplar_options) != len(stages):
            raise ValueError(f"`poplar_options` has {len(poplar_options)} entries, and there are {len(stages)} stages")
    constants = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]

    def predict(*values: tf.Tensor) -> Nested:
        results: Nested = [*constants, *values]
        for parts in stages:
            results = _joined([_call(part, results) for part in parts])
        return results

    if name is not None:
        predict.__name__ = name
    before = (preprocessing_step, preprocessing_step_signature)
    requests, of_predict = of_steps(stages[0][0], predict_step_signature, input_dataset, *before, len(constants))
    steps, output = (preprocessing_step, postprocessing_step), (output_names, postprocessing_step_signature)
    return write(predict, steps, requests, of_predict, export_dir, *output, purge_export_dir)


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
    """Exports a Keras model made in a strategy's scope by its method `export_for_ipu_serving`, with its arguments and errors.

    Raises:
      ValueError: The model was made outside of a strategy's scope.
    """
    export: Any = getattr(model, "export_for_ipu_serving", None)
    if export is None:
        raise ValueError(
            f"`model` is {model!r}, which was made outside of an IPU strategy: make it in `with strategy.scope():`"
        )
    before = (preprocessing_step, preprocessing_step_signature)
    after = (postprocessing_step, postprocessing_step_signature)
    return export(export_dir, batch_size, output_names, *before, *after, purge_export_dir)


def _check_iterations(iterations: object) -> None:
    if not is_int(iterations):
        raise TypeError(f"`iterations` must be a whole number, but is {iterations!r}")
    if iterations < 1:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"`iterations` must be 1 or more, but is {iterations}")


def _call(stage: _Step, results: Nested) -> Nested:
    if isinstance(results, Mapping):
        return stage(**results)
    return stage(*results) if isinstance(results, (list, tuple)) else stage(results)


def _joined(results: list[Nested]) -> Nested:
    """Returns the results of the concurrent parts of a stage, one after the other."""
    if len(results) == 1:
        return results[0]
    return [one for result in results for one in (result if isinstance(result, (list, tuple)) else [result])]
