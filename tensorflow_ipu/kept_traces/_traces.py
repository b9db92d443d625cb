"""A cache of traces on disk: what a process has traced, others load. Its key is a digest of all that a trace depends on."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import _executable_cache, _metrics, replicas
from tensorflow_ipu._tensorflow import definitions, functions, gradients
from tensorflow_ipu.feeds import stored as stored_feeds
from tensorflow_ipu.kept_traces import _built, _captured, _files, _settings
from tensorflow_ipu.kept_traces._reach import NotKept, Reached

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested

_logger = logging.getLogger(__name__)
_loaded = itertools.count()


class Tracing:
    """A trace that is about to be made, or found."""

    def __init__(
        self,
        fn: Callable[..., Nested],
        args: Sequence[Nested],
        kwargs: Mapping[str, Nested],
        target: replicas.Target,
        device: str,
    ) -> None:
        """Takes the function and its arguments, as for `replicas.trace`.

        Raises:
          NotKept: No such trace can be kept; the message says why.
        """
        if not isinstance(fn, functions.Function):
            raise NotKept("the program is no `tf.function`")
        if gradients.is_watched():
            raise NotKept("a tape records it")
        self._function = fn
        self._title = str(getattr(fn, "__name__", "program"))
        self._call = (fn, args, kwargs)
        self._target = target
        self._device = device
        self._before = self._reached()
        self._unbuilt = _built.unbuilt(self._before)
        self._unchanged = self._reached(self._unbuilt).digest() if self._unbuilt else self._before.digest()
        words = (self._before.digest(), _settings.settings(), target, device)
        self._name = hashlib.blake2b(repr(words).encode(), digest_size=20).hexdigest()

    def _reached(self, skipped: Sequence[Any] = ()) -> Reached:
        reached = Reached(skipped)
        for name, value in zip(("fn", "args", "kwargs"), self._call, strict=True):
            reached.add(name, value)
        return reached

    def find(self, folder: str) -> replicas.Prepared | None:
        """The program, if it was kept; None where it has to be traced. The caller has entered what a trace needs."""
        entry = _files.read(folder, self._name)
        if entry is None:
            return None
        reached = self._before
        if entry.built:
            _built.build(entry.built, reached)
            reached = self._reached()
        if reached.digest() != entry.after:
            _logger.info("a kept trace of `%s` does not fit: it is traced", self._title)
            return None
        stored_feeds.note_layouts(entry.layouts)
        name = definitions.define(entry.functions, f"kept_{self._name[:8]}_{next(_loaded)}")
        captured = _captured.found_at(entry.captured, reached, self._device)
        variables = [reached.variables[at] for at in entry.variables]

        def structured(flat: list[tf.Tensor]) -> Nested:
            return tf.nest.map_structure(
                lambda one: flat[one.number] if isinstance(one, _files.Result) else one, entry.results
            )

        def make(kind: Any) -> functions.ConcreteFunction:
            program = definitions.restored(name, self._title, entry.attributes, kind, captured, variables, structured)
            replicas.set_ipus_of_replica(program, entry.shards)
            return program

        return replicas.adopt(*self._call, self._target, make)

    def keep(self, folder: str, program: functions.ConcreteFunction) -> None:
        """Keeps what was traced.

        Raises:
          NotKept: It cannot be; the message says why.
        """
        why = replicas.not_kept(self._function, program)
        if why is not None:
            raise NotKept(why)
        if self._reached(self._unbuilt).digest() != self._unchanged:
            raise NotKept("the trace changed something that the function can reach, and would be another one next time")
        after = self._reached()
        captured, variables = _captured.places_of(program, after)
        library = definitions.definitions_of(program)
        entry = _files.KeptTrace(
            functions=library,
            attributes=definitions.attributes_of(program),
            captured=captured,
            variables=variables,
            results=_results(program),
            layouts=stored_feeds.layouts_of(library),
            built=_built.built(self._unbuilt, self._before),
            after=after.digest(),
            shards=replicas.ipus_of_replica(program),
        )
        if _files.write(folder, self._name, entry):
            _metrics.kept_traces.add()
            _logger.info("kept the trace of `%s`", self._title)


def _results(program: functions.ConcreteFunction) -> Any:
    numbers = {id(each): at for at, each in enumerate(program.graph.outputs)}

    def of(one: Any) -> Any:
        if isinstance(one, tf.Tensor) and id(one) in numbers:
            return _files.Result(numbers[id(one)])
        if one is None or isinstance(one, (bool, int, float, str)):
            return one
        raise NotKept(f"it returns a `{type(one).__name__}`")

    return tf.nest.map_structure(of, program.graph.structured_outputs)


def find_or_trace(
    call: tuple[Callable[..., Nested], Sequence[Nested], Mapping[str, Nested]],
    target: replicas.Target,
    device: str,
) -> replicas.Prepared:
    """Finds a program among those kept, or traces it, as `replicas.trace`, and keeps it. The context is that of a trace.

    Args:
      call: The function, its positional arguments and its keyword arguments.
      target: What the program is for.
      device: The IPU device.
    """
    folder = _executable_cache.folder_of_traces()
    if folder is None:
        return replicas.trace(*call, target)
    tracing = None
    try:
        tracing = Tracing(*call, target, device)
        found = tracing.find(folder)
        if found is not None:
            return found
    except NotKept as exc:
        _logger.info("the trace of `%s` is not kept: %s", getattr(call[0], "__name__", call[0]), exc)
    prepared = replicas.trace(*call, target)
    if tracing is not None:
        try:
            tracing.keep(folder, prepared[0])
        except NotKept as exc:
            _logger.info("the trace of `%s` is not kept: %s", getattr(call[0], "__name__", call[0]), exc)
    return prepared
