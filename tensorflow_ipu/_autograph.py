"""Which code AutoGraph rewrites when a program is traced: the user's, and none of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx, config
from tensorflow.python.autograph.impl import api

# AutoGraph leaves TensorFlow's own code alone by this list, and rewrites all else that a traced function calls. To
# rewrite the package takes seconds of the first trace, and gives the user its lines in the place of their own.
config.CONVERSION_RULES = (config.DoNotConvert("tensorflow_ipu"), *config.CONVERSION_RULES)


def user_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the trace that is under way wants it: rewritten, if the code that handed it over is.

    Args:
      function: A callable of the user's that the package calls while a program is traced.
    """
    return api.tf_convert(function, ag_ctx.control_status_ctx(), convert_by_default=False)
