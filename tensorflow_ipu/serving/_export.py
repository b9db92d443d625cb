"""Functions that export a step, the stages of a pipeline, or a Keras model as a SavedModel for TensorFlow Serving."""

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
    predict_specs: Sequence[tf.TensorSpec],
    export_dir: str | os.PathLike[str],
    output_names: str | list[str] | None,
    postprocessing_step_signature: Sequence[tf.TensorSpec] | None,
    purge_export_dir: bool,
) -> Callable[..., dict[str, tf.Tensor]]:
    """Writes a SavedModel with one signature, and returns the function that is loaded from it.

    `steps` are the preprocessing and the postprocessing step; each may be None. `requests` are the specs of the tensors
    of a request. `predict_specs` are the specs of the arguments of `predict`.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("a graph is being built, but models are exported in eager execution: export outside of it")
    preprocess, postprocess = steps
    names = serving_steps.names(output_names)
    if postprocess is not None and postprocessing_step_signature is not None:
        serving_steps.check_signature("postprocessing_step_signature", postprocessing_step_signature)

    def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        values: Nested = arguments
        if preprocess is not None:
            values = serving_steps.checked("`preprocessing_step`", preprocess(*values), predict_specs)
        results = serving_steps.checked("`predict_step`", predict(*values), postprocessing_step_signature)
        if postprocess is not None:
            results = serving_steps.checked("`postprocessing_step`", postprocess(*results), None)
        return serving_steps.named(results, names)

    module: Any = tf.Module()
    module.predict = tf.function(serve, input_signature=list(requests))
    # Without a device, the graph names no IPU even if the export is in a strategy's scope.
    with tf.device(None):
        traced = module.predict.get_concrete_function()
    _check_operations(traced.graph)
    module.used = [*traced.graph.variables, *_used_by(predict), *_used_by(preprocess), *_used_by(postprocess)]
    folder = serving_steps.prepared_folder(export_dir, purge_export_dir)
    tf.saved_model.save(module, str(folder), signatures=module.predict)
    loaded: Any = tf.saved_model.load(str(folder))
    loaded.predict.model = loaded  # The model owns the variables of the function.
    return loaded.predict


def _check_operations(graph: tf.Graph) -> None:
    """Raises a ValueError if the graph has operations of this package, without which TensorFlow cannot load the model."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    operations = sorted({node.op for node in nodes if node.op.startswith("Ipu")})
    if operations:
        raise ValueError(
            f"the model uses {', '.join(f'`{name}`' for name in operations)}, which exist only in programs on IPUs, but"
            " TensorFlow serves it without this package: export steps without collectives, queues and host callbacks"
        )


def _used_by(step: Callable[..., Nested] | None) -> Iterator[Any]:
    """Yields the tables and modules in the closure, globals and object of a function, for the SavedModel to track."""
    function: Any = getattr(step, "python_function", step)
    if not inspect.isroutine(function):
        if isinstance(function, tf.Module):
            yield function
        return
    owner = getattr(function, "__self__", None)
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # A function that is written in C.
        return
    for value in (owner, *variables.nonlocals.values(), *variables.globals.values()):
        if isinstance(value, (tf.Module, tf.lookup.StaticHashTable, tf.lookup.experimental.DenseHashTable)):
            yield value
        elif callable(value) and hasattr(value, "python_function"):
            yield from _used_by(value)


_Step = Callable[..., "Nested"]
_Signature = Sequence[tf.TensorSpec]


def signatures_of_steps(
    predict_step: Callable[..., Nested],
    predict_step_signature: _Signature | None,
    input_dataset: tf.data.Dataset | None,
    preprocessing_step: Callable[..., Nested] | None,
    preprocessing_step_signature: _Signature | None,
    constants: int = 0,
) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    """Returns the signatures of requests and of `predict_step`, which are equal without a `preprocessing_step`."""
    first_step = "predict_step" if preprocessing_step is None else "preprocessing_step"
    signature = predict_step_signature if preprocessing_step is None else preprocessing_step_signature
    if input_dataset is not None:
        if not isinstance(input_dataset, tf.data.Dataset):
            raise TypeError(f"`input_dataset` must be a `tf.data.Dataset`, but is {input_dataset!r}")
        if signature is not None:
            raise ValueError(
                f"both `{first_step}_signature` and `input_dataset` are given, but each specifies requests: set only one"
            )
        element: Any = input_dataset.element_spec
        signature = (element,) if isinstance(element, tf.TensorSpec) else element
        if not isinstance(signature, (list, tuple)):
            raise TypeError(
                f"the elements of `input_dataset` must be tensors or tuples of them, but are {element!r}: map them, or set"
                f" `{first_step}_signature`"
            )
    if preprocessing_step is None:
        predict_specs = _named_specs("predict_step", predict_step, signature, constants)
        return predict_specs, predict_specs
    requests = _named_specs("preprocessing_step", preprocessing_step, signature, 0)
    return requests, _named_specs("predict_step", predict_step, predict_step_signature, constants)


def _named_specs(
    argument: str, step: Callable[..., Nested], signature: _Signature | None, constants: int
) -> list[tf.TensorSpec]:
    """Returns the specs of a step's arguments, named after its parameters; its first `constants` arguments are left out."""
    if signature is None and not getattr(step, "input_signature", None):
        raise ValueError(
            f"the signature of `{argument}` cannot be inferred: set `{argument}_signature` to a list of `tf.TensorSpec`, or"
            f" make it a `tf.function` with an `input_signature`"
            + ("" if argument == "predict_step" and constants else ", or pass an `input_dataset` of requests")
        )
    specs = serving_steps.signature(argument, step, signature)
    parameters = _parameters(step)
    if parameters is None:
        names = [spec.name or f"input_{index}" for index, spec in enumerate(specs)]
    else:
        names, required = parameters[0][constants:], max(0, parameters[1] - constants)
        if len(specs) > len(names) and len(specs) == len(names) + constants:
            specs = specs[constants:]  # The signature of a `tf.function` includes the constants.
        names = names[: max(required, len(specs))]  # Further parameters have defaults.
    if len(specs) != len(names):
        raise ValueError(
            f"`{argument}_signature` has {len(specs)} entries, but `{argument}` takes {len(names)} arguments"
            f" ({', '.join(names)})" + (f" in addition to the {constants} of `inputs`" if constants else "")
        )
    for name, spec in zip(names, specs, strict=True):
        if argument == "predict_step" and not spec.shape.is_fully_defined():
            raise ValueError(
                f"`{name}` of `{argument}` has shape {spec.shape}, but a program for an IPU has static shapes: specify all"
                " dimensions, including the batch"
            )
    return [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in zip(names, specs, strict=True)]


def _parameters(step: Callable[..., Nested]) -> tuple[list[str], int] | None:
    """Returns the names of a function's parameters and the number of required ones; None if it has `*args` or no signature."""
    function = getattr(step, "python_function", step)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in kinds]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    return [parameter.name for parameter in positional], required


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

    A request is one element with the static shapes of the signature, including the batch. One call of the function
    answers it. The model has the current values of variables.

    Args:
      predict_step: A function of tensors, or a `tf.function`.
      export_dir: An empty folder, or a folder to be created.
      iterations: The number of requests that a program on real IPUs answers in one run, 1 or more. It does not change
        the answers.
      predict_step_signature: A `tf.TensorSpec` for each argument of the function. It may be omitted for a `tf.function`
        with an `input_signature`, or if there is an `input_dataset` and no `preprocessing_step`.
      input_dataset: A dataset of requests, instead of the signature of the first step.
      output_names: The name of each output, as a string or a list of strings; by default `output_0` and so on.
      preprocessing_step: A function from the tensors of a request, of any type, to the arguments of `predict_step`.
      preprocessing_step_signature: A `tf.TensorSpec` for each argument of `preprocessing_step`.
      postprocessing_step: A function from the results of `predict_step` to the outputs.
      postprocessing_step_signature: A `tf.TensorSpec` for each argument of `postprocessing_step`, to be checked.
      purge_export_dir: Whether to delete the contents of `export_dir`.

    Returns:
      The function that is served. It maps the tensors of a request to a dict of outputs by name.

    Raises:
      RuntimeError: A graph of TensorFlow 1 is being built.
      TypeError: A signature, a name or the dataset has a wrong type.
      ValueError: A signature cannot be inferred or is set twice, a shape is not static, `export_dir` is not empty, or
        the signatures, results and names of steps do not match.
    """
    _check_iterations(iterations)
    requests, predict_specs = signatures_of_steps(
        predict_step, predict_step_signature, input_dataset, preprocessing_step, preprocessing_step_signature
    )
    steps, output = (preprocessing_step, postprocessing_step), (output_names, postprocessing_step_signature)
    return write(predict_step, steps, requests, predict_specs, export_dir, *output, purge_export_dir)


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
    """Exports the stages of a pipeline as a SavedModel, like `export_single_step` exports a function.

    The plan is checked as by `pipelining.pipeline`. The model computes the stages one after the other.

    Args:
      computational_stages: The stages, as for `pipelining.pipeline`.
      export_dir: An empty folder, or a folder to be created.
      iterations: The number of requests in one run of the pipeline, like its `gradient_accumulation_count`. Real IPUs
        answer them after the last one has arrived. It does not change the answers.
      inputs: The first arguments of the first stage, the same for each request.
      device_mapping: The IPU of each stage; see `pipelining.pipeline`.
      pipeline_schedule: The schedule; Grouped if omitted.
      poplar_options: A `PipelineStageOptions` for each stage. They are only checked.
      name: The name of the function that is served.
      predict_step_signature: A `tf.TensorSpec` for each argument of the first stage that is not in `inputs`.
      input_dataset: As for `export_single_step`.
      output_names: As for `export_single_step`.
      preprocessing_step: As for `export_single_step`.
      preprocessing_step_signature: As for `export_single_step`.
      postprocessing_step: As for `export_single_step`.
      postprocessing_step_signature: As for `export_single_step`.
      purge_export_dir: As for `export_single_step`.

    Returns:
      The function that is served, as for `export_single_step`.

    Raises:
      RuntimeError: As for `export_single_step`.
      TypeError: As for `export_single_step`, or an argument of the pipeline has a wrong type.
      ValueError: As for `export_single_step`, or arguments of the pipeline contradict each other.
      tf.errors.FailedPreconditionError: `iterations` is no multiple of the number that the schedule requires.
    """
    _check_iterations(iterations)
    if not isinstance(computational_stages, (list, tuple)):
        raise TypeError(f"`computational_stages` must be a list or tuple of functions, but is {computational_stages!r}")
    stages: list[Any] = [list(stage) if isinstance(stage, (list, tuple)) else [stage] for stage in computational_stages]
    for index, parts in enumerate(stages):
        if not parts or not all(map(callable, parts)):
            raise TypeError(
                f"`computational_stages[{index}]` must be a function, but is {computational_stages[index]!r}"
            )
    schedule = pipelining.PipelineSchedule.Grouped if pipeline_schedule is None else pipeline_schedule
    pipelining.pipeline_plan(len(stages), iterations, schedule, device_mapping=device_mapping, training=False)
    if poplar_options is not None:
        option_type: Any = pipelining.PipelineStageOptions
        if not isinstance(poplar_options, (list, tuple)) or not all(
            isinstance(options, option_type) for options in poplar_options
        ):
            raise TypeError(f"`poplar_options` must be a list of `PipelineStageOptions`, but is {poplar_options!r}")
        if len(poplar_options) != len(stages):
            raise ValueError(f"`poplar_options` has {len(poplar_options)} entries, but there are {len(stages)} stages")
    constants = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]

    def predict(*values: tf.Tensor) -> Nested:
        results: Nested = [*constants, *values]
        for parts in stages:
            results = _concatenated([_call(part, results) for part in parts])
        return results

    if name is not None:
        predict.__name__ = name
    preprocessing = (preprocessing_step, preprocessing_step_signature)
    requests, predict_specs = signatures_of_steps(
        stages[0][0], predict_step_signature, input_dataset, *preprocessing, len(constants)
    )
    steps, output = (preprocessing_step, postprocessing_step), (output_names, postprocessing_step_signature)
    return write(predict, steps, requests, predict_specs, export_dir, *output, purge_export_dir)


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
    """Exports a Keras model by its method `export_for_ipu_serving`, with its arguments, result and errors.

    Raises:
      ValueError: The model was created outside of a strategy's scope.
    """
    export: Any = getattr(model, "export_for_ipu_serving", None)
    if export is None:
        raise ValueError(
            f"`model` is {model!r}, which was made outside of an IPU strategy: create it in `with strategy.scope():`"
        )
    preprocessing = (preprocessing_step, preprocessing_step_signature)
    postprocessing = (postprocessing_step, postprocessing_step_signature)
    return export(export_dir, batch_size, output_names, *preprocessing, *postprocessing, purge_export_dir)


def _check_iterations(iterations: object) -> None:
    if not is_int(iterations):
        raise TypeError(f"`iterations` must be a whole number, but is {iterations!r}")
    if iterations < 1:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"`iterations` must be 1 or more, but is {iterations}")


def _call(stage: _Step, results: Nested) -> Nested:
    if isinstance(results, Mapping):
        return stage(**results)
    return stage(*results) if isinstance(results, (list, tuple)) else stage(results)


def _concatenated(results: list[Nested]) -> Nested:
    """Returns the results of the concurrent parts of a stage as one list, or the results of a single part unchanged."""
    if len(results) == 1:
        return results[0]
    return [value for result in results for value in (result if isinstance(result, (list, tuple)) else [result])]
