"""Programs are rewritten by AutoGraph, whatever Python makes of its warnings."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import tensorflow as tf


# Python 3.13 warns of how AutoGraph copies syntax trees. Hundreds of programs failed where warnings were errors.
def test_loop_of_a_program_is_rewritten_where_all_warnings_but_one_are_errors(
    strategy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # As docs/emulation.md has it.
        warnings.filterwarnings(
            "ignore", r"\w+\.__init__ got an unexpected keyword argument '___pyct_anno'", DeprecationWarning
        )

        @tf.function(jit_compile=True)
        def program(n: Any) -> Any:
            total = 0
            for i in tf.range(n):
                if i % 2 == 0:
                    total += i
            return total

        with caplog.at_level(logging.WARNING):
            assert strategy.run(program, (tf.constant(7),)).numpy() == 12
    assert "could not transform" not in caplog.text
