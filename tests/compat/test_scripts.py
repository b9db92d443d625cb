"""Scripts in the style of IPU users run unmodified, and their results equal those of plain NumPy."""

from collections.abc import Callable

import numpy as np
import pytest

Output = Callable[[str], list[str]]


def _numbers(line, skip=1):
    return [float(word) for word in line.split()[skip:]]


def _regress(x, y, bias, rate, steps):
    """Trains a linear model by gradient descent on the mean squared error; returns losses, weights and bias."""
    weights = np.zeros([x.shape[1], 1])
    losses = []
    for step in range(steps):
        batch = slice(step * 8 % len(x), step * 8 % len(x) + 8)
        error = x[batch] @ weights + bias - y[batch]
        losses.append(float(np.mean(error**2)))
        weights = weights - rate * 2 * x[batch].T @ error / 8
        bias -= rate * 2 * float(np.mean(error))
    return losses, weights, bias


def test_first_feed_script_dequeue_thread_and_old_keras_print_what_they_did(script_output):
    assert script_output("feed_loop.py") == ["counter 10", "d1 (10, 800) 2.0 2.0", "d2 (10, 800) 0.0 0.0"]
    lines = [line.split() for line in script_output("dequeue_thread.py")]
    assert [int(line[1]) for line in lines] == list(range(60))
    assert float(lines[0][3]) > 1.5
    assert float(lines[-1][3]) < 0.2
    # The four samples have the same input, whose prediction changes from 0 to 0.5 * (0.5 + 2) = 1.25; the target is 1.
    assert script_output("old_keras.py") == ["losses 1.0 0.0625", "fit 2 0.1"]


def test_session_script_trains_as_plain_gradient_descent_does(script_output):
    output = script_output("session.py")
    x = np.random.RandomState(0).randn(64, 4).astype(np.float32)
    losses, weights, bias = _regress(x, x @ np.array([[1.0], [2.0], [3.0], [4.0]]), 1.0, 0.05, 40)
    first, first_last, second, second_last, unread, weights_line, bias_line = output
    np.testing.assert_allclose(_numbers(first) + _numbers(second), losses, 1e-3, 1e-5)
    assert (first_last, second_last, unread) == ("last True", "last True", "unread (0,)")
    assert weights_line.split()[:2] == ["linear/weights", "/device:IPU:0"]
    np.testing.assert_allclose(_numbers(weights_line, skip=2), weights.ravel(), 1e-3)
    assert _numbers(bias_line, skip=2) == pytest.approx([bias], rel=1e-3)


def test_pipeline_script_trains_as_gradient_accumulation_does(script_output):
    losses, variables = script_output("pipeline.py")
    x = np.random.RandomState(0).randn(16, 2).astype(np.float32)
    weight, bias = 0.5, 0.0
    expected = []
    for batch in np.split(x, 2):
        errors = weight * batch + bias - (3 * batch + 1)
        expected += list(np.mean(errors**2, axis=1))
        weight -= 0.05 * 0.5 * np.sum(np.mean(2 * errors * batch, axis=1))
        bias -= 0.05 * 0.5 * np.sum(np.mean(2 * errors, axis=1))
    np.testing.assert_allclose(_numbers(losses), expected, 1e-4)
    np.testing.assert_allclose(_numbers(variables), [weight, bias], 1e-4)
