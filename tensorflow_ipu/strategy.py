"""`IPUStrategy`: the `tf.distribute.Strategy` that runs programs on an emulated IPU device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util, distribute_lib

from tensorflow_ipu import replicas
from tensorflow_ipu._extended import IPUExtended
from tensorflow_ipu.feeds import dataset_iteration

__all__ = ["IPUStrategy", "IPUStrategyV1"]


class IPUStrategyV1(distribute_lib.StrategyV1):
    """Places variables on an IPU device and runs whole functions on it.

    Inside `scope()`, variables (and with them Keras models and optimizers) are made on the IPU device, their initial
    values on the host. `run` executes a `tf.function` as one compiled program, loops and all:

        strategy = ipu.IPUStrategy()
        with strategy.scope():
            model = tf.keras.Sequential([...])
            iterator = iter(dataset)
            strategy.run(train_steps, args=(iterator, model))

    Several IPUs in a device are replicas inside of a program; towards the host the strategy is one replica.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        """Creates the strategy.

        Args:
          ipu_device: The IPU device, for instance `"/device:IPU:0"`.
          cpu_device: The device on which initial values are computed.
          enable_dataset_iterators: Whether `iter(dataset)` inside the scope gives an `IPUIterator`, whose `next` runs in
            the program.
          enable_keras_extensions: Whether Keras models that are made inside the scope get the IPU's extensions. Recorded:
            models run Keras's own loops either way.

        Raises:
          ValueError: `ipu_device` is no IPU device, or `cpu_device` no CPU.
          TypeError: A switch is not a bool.
        """
        _check_device("ipu_device", ipu_device, "IPU")
        _check_device("cpu_device", cpu_device, "CPU")
        _check_bool("enable_dataset_iterators", enable_dataset_iterators)
        _check_bool("enable_keras_extensions", enable_keras_extensions)
        super().__init__(IPUExtended(self, ipu_device, cpu_device))
        self._enable_dataset_iterators = enable_dataset_iterators
        self._enable_keras_extensions = enable_keras_extensions

    def scope(self) -> Any:
        """Makes this strategy the current one for a `with` block.

        Returns:
          A context manager that gives the strategy.
        """
        return self._scope()

    @contextlib.contextmanager
    def _scope(self) -> Iterator[IPUStrategyV1]:
        with super().scope(), dataset_iteration.on_device():
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:
        """Runs `fn` as one program on the IPU device, and returns when it has ended.

        Args:
          fn: A `tf.function` or concrete function. One that has no `jit_compile=True` is compiled all the same. Inside
            of another `tf.function` it may be any callable.
          args: Positional arguments: tensors, Python values, iterators, queues, models, optimizers.
          kwargs: Keyword arguments, likewise.
          options: Accepted for `tf.distribute`; programs are compiled whole, whatever it says.

        Returns:
          What `fn` returns: on replicas, what the first of them returned.

        Raises:
          ValueError: `fn` is a plain function and the call is eager; or the program uses variables of another device.
          TypeError: `fn` cannot be called; or an input or output of the program is float64.
          tf.errors.OpError: The program failed. `OutOfRangeError`: its dataset ended.
        """
        if options is not None and not isinstance(options, tf.distribute.RunOptions):
            raise TypeError(f"`options` must be a `tf.distribute.RunOptions`, but is {options!r}")
        if not callable(fn):
            raise TypeError(f"`fn` must be a `tf.function`, but is {fn!r}")
        kwargs = {} if kwargs is None else kwargs
        if not tf.executing_eagerly():
            # Kept from tracing `run` itself: what the user wrote is in `fn`.
            return self.extended.call_for_each_replica(replicas.compiled(fn), args, kwargs)
        if not replicas.is_graph_function(fn):
            raise ValueError(
                f"`{type(self).__name__}.run` does not support eager execution, and `fn` is the plain callable {fn!r}."
                " Decorate it with `@tf.function(jit_compile=True)`, or call `run` inside of a `tf.function`"
            )
        extended = self.extended

        def run_program(*args: Any, **kwargs: Any) -> Any:
            return replicas.run(fn, args, kwargs, extended.ipu_device, extended.ordinal)

        with distribute_lib.StrategyBase.scope(self):
            return extended.call_for_each_replica(run_program, args, kwargs)

    def experimental_run_v2(self, *args: Any, **kwargs: Any) -> Any:
        """Always raises: `run` took its place.

        Raises:
          RuntimeError: At every call.
        """
        del args, kwargs
        raise RuntimeError("`experimental_run_v2` is no more. Call `run`, which takes the same arguments")

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Returns the dataset: queues hand its elements to the replicas.

        Args:
          dataset: A `tf.data.Dataset`.
          options: Accepted for `tf.distribute`; nothing is distributed on the host.
        """
        del options
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any = None) -> Any:
        """Returns `dataset_fn(tf.distribute.InputContext())`.

        Args:
          dataset_fn: A function from an input context to a dataset.
          options: Accepted for `tf.distribute`; nothing is distributed on the host.
        """
        del options
        return dataset_fn(distribute_lib.InputContext())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    @property
    def supports_loss_scaling(self) -> bool:
        """True: loss scaling works under the strategy."""
        return True


IPUStrategy = IPUStrategyV1


def _check_device(argument: str, value: str, kind: str) -> None:
    try:
        actual = tf.DeviceSpec.from_string(device_util.canonicalize(value)).device_type
    except (ValueError, TypeError, AttributeError) as exc:
        raise ValueError(f"`{argument}` must name a device like `/device:{kind}:0`, but is {value!r}") from exc
    if actual != kind:
        raise ValueError(f"`{argument}` must name a device like `/device:{kind}:0`, but is {value!r}")


def _check_bool(argument: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"`{argument}` must be True or False, but is {value!r}")
