"""The optimizer of a pipeline: which variables it trains, what it does to gradients, and its update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensors import tf_variable
from tensorflow_ipu.optimizers import update_memory
from tensorflow_ipu.pipelining.stages.tracing import StageTrace
from tensorflow_ipu.pipelining.training import _slots
from tensorflow_ipu.pipelining.training.optimizer_output import OptimizerFunctionOutput, OptimizerKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._types import Variable


class Training:
    """What a pipeline's optimizer function said, applied to the variables of its stages.

    Attributes:
      variables: The variables to train.
    """

    def __init__(self, output: OptimizerFunctionOutput, traces: Sequence[StageTrace]) -> None:
        """Finds the variables to train.

        Raises:
          RuntimeError: There are none.
        """
        self._output = output
        self._args, self._kwargs, chosen = _without_var_list(output)
        used = _distinct([variable for trace in traces for variable in trace.variables])
        if chosen is None and output.variables:
            chosen = output.variables
        elif chosen is None and output.tape is not None:
            chosen = output.tape.watched_variables()
        # Keras has variables of its own, around those of TensorFlow; its optimizers are given back what they gave.
        self._given = {id(tf_variable(variable).handle): variable for variable in chosen or ()}
        if chosen:
            self.variables = _distinct([tf_variable(variable) for variable in chosen])
        else:
            self.variables = [variable for variable in used if variable.trainable]
        handles = {id(variable.handle) for variable in used}
        if not any(id(variable.handle) in handles for variable in self.variables):
            raise RuntimeError(
                "No variables to optimize: no stage of the pipeline uses a trainable variable"
                + (" that `OptimizerFunctionOutput` names" if chosen else "")
                + ". Use weights in the stages, or leave `optimizer_function` out to infer alone"
            )

    def mapped(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> Sequence[tuple[tf.Tensor | None, tf.Variable]]:
        """Passes the gradients of one micro-batch through the optimizer's `compute_gradients`.

        An optimizer may scale the loss there, or clip, average and capture gradients. It takes a loss and differentiates it
        itself, so it is given a surrogate: the sum over the variables of `variable * gradient`, with the gradients as
        constants. The gradients of that sum are the given ones. TensorFlow's own `compute_gradients` does nothing else to
        them, and need not be asked: it takes 10 ms a stage.
        """
        if self._output.kind is not OptimizerKind.V1 or not pairs or self._only_differentiates():
            return pairs
        products = [tf.reduce_sum(variable * tf.stop_gradient(gradient)) for gradient, variable in pairs]
        loss = tf.add_n([tf.cast(product, products[0].dtype) for product in products])
        variables = [variable for _, variable in pairs]
        found = self._output.opt.compute_gradients(loss, *self._args, var_list=variables, **self._kwargs)
        return [(None if one is None else tf.convert_to_tensor(one), variable) for one, variable in found]

    def _only_differentiates(self) -> bool:
        """Whether the optimizer's `compute_gradients` is the one that TensorFlow has for all, called without options."""
        method = getattr(self._output.opt.compute_gradients, "__func__", None)
        plain = tf.compat.v1.train.Optimizer.compute_gradients
        return method is plain and not self._args and not self._kwargs

    def captured(self) -> dict[str, list[tf.Tensor]]:
        """The gradients that were captured last, by their tags; none where nothing captures."""
        capturing = self._output.capturing
        return {} if capturing is None else capturing.captured_gradients

    def finish(self, captured: dict[str, list[tf.Tensor]]) -> None:
        """Hands on the captured gradients of a pass."""
        queue = self._output.captured_gradient_outfeed
        if queue is not None and captured:
            queue.enqueue(captured)

    def prepare(self, function: Callable[..., OptimizerFunctionOutput], stage: tf.Graph) -> None:
        """Has the optimizer have its variables, ahead of any loop.

        Args:
          function: The optimizer function.
          stage: The graph of the stage in which it was called.
        """
        optimizer, variables = self._output.opt, self.variables
        if self._output.kind is OptimizerKind.V1:
            _slots.take_over(optimizer, function, stage, variables)
        elif self._output.kind is OptimizerKind.KERAS and not optimizer.built:
            optimizer.build([self._given.get(id(each.handle), each) for each in variables])

    def state_bytes(self) -> int:
        """What the optimizer keeps beside the weights, in bytes; 0 where it does not tell."""
        try:
            memory = update_memory(self._output.opt, ())
        except TypeError:
            return 0
        return memory.state_on_chip + memory.state_off_chip

    def update(self, gradients: Sequence[tuple[tf.Tensor, tf.Variable]]) -> None:
        """Updates the variables.

        Args:
          gradients: Pairs of accumulated gradient and variable; a variable that several stages share comes several times.
        """
        sums: dict[int, tf.Tensor] = {}
        for gradient, variable in gradients:
            key = id(variable.handle)
            sums[key] = sums[key] + gradient if key in sums else gradient
        if not sums:  # The loss depends on no variable, which optimizers refuse.
            sums = {id(variable.handle): tf.zeros_like(variable) for variable in self.variables}
        pairs = [
            (sums.get(id(variable.handle)), self._given.get(id(variable.handle), variable))
            for variable in self.variables
            if id(variable.handle) in sums or id(variable.handle) in self._given
        ]
        output = self._output
        output.opt.apply_gradients(pairs, *output.apply_gradients_args, **output.apply_gradients_kwargs)


def _distinct(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    return list({id(variable.handle): variable for variable in variables}.values())


def _without_var_list(
    output: OptimizerFunctionOutput,
) -> tuple[tuple[Any, ...], dict[str, Any], Sequence[Variable] | None]:
    """The further arguments of `compute_gradients`, and the list of variables that was among them."""
    args = output.compute_gradients_args
    kwargs = dict(output.compute_gradients_kwargs)
    if args:
        # The first one behind the loss is the list of variables, which each stage gets its own part of.
        names = ("gate_gradients", "aggregation_method", "colocate_gradients_with_ops", "grad_loss")
        return (), {**dict(zip(names, args[1:], strict=False)), **kwargs}, args[0]
    return (), kwargs, kwargs.pop("var_list", None)
