"""Tests that methods of `keras.Model` that a tool has wrapped get the arguments as the user passed them."""

import keras
import numpy as np
import pytest

METHODS = ("compile", "fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


@pytest.fixture
def received(monkeypatch):
    """Returns the arguments of each wrapped method. The wrappers have another signature, without `functools.wraps`."""
    calls = {}

    def wrapped(name):
        original = getattr(keras.Model, name)

        def method(self, *args, **kwargs):
            calls[name] = (len(args), set(kwargs))
            kwargs.pop("run_name", None)
            return original(self, *args, **kwargs)

        return method

    for name in METHODS:
        monkeypatch.setattr(keras.Model, name, wrapped(name))
    return calls


def test_a_wrapper_without_a_signature_gets_positions_and_names_as_the_user_passed_them(
    received, features, labels, make_model, scoped, assert_same
):
    def use():
        model = make_model()
        results = [model.fit(features, labels, 12, verbose=0, run_name="first").history["loss"]]
        results += [model.fit(x=features, y=labels, batch_size=12, verbose=0, validation_split=0.5).history["val_loss"]]
        assert received["fit"][0] == 0
        results += [model.evaluate(features, y=labels, batch_size=12, verbose=0)]
        assert received["evaluate"][0] == 1
        assert {"y", "batch_size", "verbose"} <= received["evaluate"][1]
        results += [model.predict(features, 12, verbose=0)]
        assert received["predict"][0] == 2
        single = (features[:12], labels[:12])
        results += [model.train_on_batch(*single), model.test_on_batch(single[0], y=single[1])]
        assert received["train_on_batch"] == (2, set())
        assert received["test_on_batch"] == (1, {"y"})
        return [*results, model.predict_on_batch(single[0])]

    expected = use()
    assert set(received) == set(METHODS)
    received.clear()
    assert_same(scoped(use), expected)
    assert set(received) == set(METHODS)


def test_an_argument_that_keras_lacks_is_refused(features, make_model, scoped):
    model = scoped(make_model)
    with pytest.raises(TypeError, match="unexpected keyword argument 'run_name'"):
        model.fit(features, np.zeros([48]), batch_size=12, run_name="first")
