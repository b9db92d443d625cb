"""AutoGraph: what it rewrites when a program is traced, and what it says of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx, config
from tensorflow.python.autograph.impl import api

from tensorflow_ipu._tensorflow import patches


def _leave_package_alone(rules: tuple[Any, ...]) -> tuple[Any, ...]:
    """The rules of AutoGraph with one against rewriting this package ahead of them.

    Stands on `config.DoNotConvert`; `tf.autograph.experimental.do_not_convert` is public, and for one function. When it
    is gone: that one, around each public function.
    """
    return (config.DoNotConvert("tensorflow_ipu"), *rules)


def user_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the trace that is under way wants it: rewritten, if the code that handed it over is.

    Stands on `api.tf_convert` and `ag_ctx.control_status_ctx`, which Keras has in `tf.__internal__.autograph`;
    `tf.autograph.to_graph` is public, and rewrites whatever the user said. When they are gone: those.
    """
    return api.tf_convert(function, ag_ctx.control_status_ctx(), convert_by_default=False)


def without_lines(text: str) -> Any:
    """What AutoGraph keeps of an error (`ag_error_metadata`), for one that is to be told without lines of code.

    Stands on `api._ErrorMetadata`: AutoGraph adds the lines of the user's code, one a function, to those that are known
    of an error, and these are none. When it is gone: errors tell lines of TensorFlow as well.
    """
    return api._ErrorMetadata((), None, text, {}, "")


patches.AUTOGRAPH_RULES.by(_leave_package_alone)
patches.AUTOGRAPH_RULES.apply_for_good()
