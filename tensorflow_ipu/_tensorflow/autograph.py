"""AutoGraph: what it rewrites when a program is traced, and what it says of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx, config
from tensorflow.python.autograph.impl import api

from tensorflow_ipu._tensorflow import patches


def _leave_package_alone(rules: tuple[Any, ...]) -> tuple[Any, ...]:
    """AutoGraph's rules after one that leaves this package alone; stands on `config.DoNotConvert`."""
    # Without it: `tf.autograph.experimental.do_not_convert`, which is public, around each public function.
    return (config.DoNotConvert("tensorflow_ipu"), *rules)


def user_code(function: Callable[..., Any], by_default: bool = False) -> Callable[..., Any]:
    """The function, rewritten if the code that passed it is; stands on `api.tf_convert` and `ag_ctx.control_status_ctx`.

    With `by_default`, it is rewritten as `tf.function` rewrites its own: unless AutoGraph is off.
    """
    # `tf.autograph.to_graph` is public and always rewrites. Without them: the same in `tf.__internal__.autograph`.
    return api.tf_convert(
        function, ag_ctx.control_status_ctx(), convert_by_default=by_default, user_requested=by_default
    )


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, rewritten with the user's code that it calls; stands on `api.tf_convert` and `ag_ctx.ControlStatusCtx`."""
    # Without them: the same in `tf.__internal__.autograph`.
    return api.tf_convert(function, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))


def without_lines(text: str) -> Any:
    """Metadata (`ag_error_metadata`) of an error without lines of code; stands on `api._ErrorMetadata`."""
    # AutoGraph adds the user's lines, one per function, to those that are known. Without it: errors tell lines of TensorFlow as
    # well.
    return api._ErrorMetadata((), None, text, {}, "")


def add_to_message(error: Exception, text: str) -> None:
    """Adds a sentence to an error's message; stands on `cause_message` of `ag_error_metadata`."""
    # AutoGraph makes errors anew from that. Without it: the sentence is lost where AutoGraph rewrites the caller.
    known: Any = getattr(error, "ag_error_metadata", None)
    if known is not None:
        known.cause_message = f"{known.cause_message}\n\n{text}"
    error.args = (f"{error}\n\n{text}",)


patches.AUTOGRAPH_RULES.apply_for_good(_leave_package_alone)
