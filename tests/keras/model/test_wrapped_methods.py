"""Methods of `keras.Model` that a tool has wrapped get the arguments as the user passed them."""

import keras
import numpy as np
import pytest

METHODS = ("compile", "fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


@pytest.fixture
def seen(monkeypatch):
    """What the wrapper of each method was called with: it has a signature of its own, and no `functools.wraps`."""
    found = {}

    def wrapped(name):
        plain = getattr(keras.Model, name)

        def method(self, *args, **kwargs):
            found[name] = (len(args), set(kwargs))
            kwargs.pop("run_name", None)
            return plain(self, *args, **kwargs)

        return method

    for name in METHODS:
        monkeypatch.setattr(keras.Model, name, wrapped(name))
    return found


def test_a_wrapper_without_a_signature_gets_positions_and_names_as_the_user_passed_them(
    seen, features, labels, make_model, scoped, assert_same
):
    def use():
        model = make_model()
        found = [model.fit(features, labels, 12, verbose=0, run_name="first").history["loss"]]
        found += [model.fit(x=features, y=labels, batch_size=12, verbose=0, validation_split=0.5).history["val_loss"]]
        assert seen["fit"][0] == 0
        found += [model.evaluate(features, y=labels, batch_size=12, verbose=0)]
        assert seen["evaluate"][0] == 1
        assert {"y", "batch_size", "verbose"} <= seen["evaluate"][1]
        found += [model.predict(features, 12, verbose=0)]
        assert seen["predict"][0] == 2
        single = (features[:12], labels[:12])
        found += [model.train_on_batch(*single), model.test_on_batch(single[0], y=single[1])]
        assert seen["train_on_batch"] == (2, set())
        assert seen["test_on_batch"] == (1, {"y"})
        return [*found, model.predict_on_batch(single[0])]

    plain = use()
    assert set(seen) == set(METHODS)
    seen.clear()
    assert_same(scoped(use), plain)
    assert set(seen) == set(METHODS)


def test_an_argument_that_keras_lacks_is_refused(features, make_model, scoped):
    model = scoped(make_model)
    with pytest.raises(TypeError, match="unexpected keyword argument 'run_name'"):
        model.fit(features, np.zeros([48]), batch_size=12, run_name="first")
