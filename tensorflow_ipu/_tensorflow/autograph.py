"""Selects which functions AutoGraph converts, and edits the messages of its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx, config
from tensorflow.python.autograph.impl import api

from tensorflow_ipu._tensorflow import patches


def _leave_package_alone(rules: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a rule that excludes this package, followed by AutoGraph's. Uses the private `config.DoNotConvert`."""
    # Without it: wrap each public function in the public `tf.autograph.experimental.do_not_convert`.
    return (config.DoNotConvert("tensorflow_ipu"), *rules)


def user_code(function: Callable[..., Any], by_default: bool = False) -> Callable[..., Any]:
    """Returns `function`, converted by AutoGraph if its caller was converted.

    With `by_default`, it is converted unless AutoGraph is disabled, like the argument of `tf.function`.
    Uses the private `api.tf_convert` and `ag_ctx.control_status_ctx`.
    """
    # The public `tf.autograph.to_graph` always converts. Without them: use the same functions of
    # `tf.__internal__.autograph`.
    return api.tf_convert(
        function, ag_ctx.control_status_ctx(), convert_by_default=by_default, user_requested=by_default
    )


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, converted by AutoGraph together with the user's code that it calls.

    Uses the private `api.tf_convert` and `ag_ctx.ControlStatusCtx`.
    """
    # Without them: use the same functions of `tf.__internal__.autograph`.
    return api.tf_convert(function, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))


def without_lines(text: str) -> Any:
    """Returns error metadata (`ag_error_metadata`) that has no lines of code yet.

    Uses the private `api._ErrorMetadata`.
    """
    # AutoGraph adds one line of the user's code for each function. Without it: messages show lines of TensorFlow too.
    return api._ErrorMetadata((), None, text, {}, "")


def add_to_message(error: Exception, text: str) -> None:
    """Adds a paragraph to an error's message. Uses the private `cause_message` of `ag_error_metadata`."""
    # AutoGraph creates the error again from the metadata. Without it: the text is lost if AutoGraph has converted the
    # caller.
    metadata: Any = getattr(error, "ag_error_metadata", None)
    if metadata is not None:
        metadata.cause_message = f"{metadata.cause_message}\n\n{text}"
    error.args = (f"{error}\n\n{text}",)


patches.AUTOGRAPH_RULES.apply_for_good(_leave_package_alone)
