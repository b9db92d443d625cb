"""A model's options in its file: what is kept, what cannot be, and files with options that are bad or unknown."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers


def test_file_of_a_reset_model_has_what_was_not_reset(tiny, make_tiny, set_all, scoped, tmp_path, all_printed, printed):
    set_all(tiny)
    tiny.reset_pipelining_options()
    tiny.reset_infeed_queue_options()
    tiny.save(tmp_path / "model.keras")
    again = scoped(lambda: keras.models.load_model(tmp_path / "model.keras"))
    assert all_printed(again) == all_printed(tiny)
    untouched = make_tiny()
    assert printed(again, "pipelining") == printed(untouched, "pipelining")
    assert printed(again, "replication") != printed(untouched, "replication")
    for group in ("gradient_accumulation", "outfeed_queue", "replication"):
        getattr(again, f"reset_{group}_options")()
    again.save(tmp_path / "plain.keras")
    last = scoped(lambda: keras.models.load_model(tmp_path / "plain.keras"))
    assert all_printed(last) == all_printed(untouched)


def test_options_that_no_file_can_keep_are_named(tiny, make_tiny, tmp_path, all_printed):
    tiny.set_gradient_accumulation_options(2, dtype=lambda variable: variable.dtype)
    with pytest.warns(UserWarning, match="the option `dtype` of the model is .* cannot be saved; set it again"):
        tiny.save_assets(tmp_path)
    again = make_tiny()
    again.load_assets(tmp_path)
    tiny.set_gradient_accumulation_options(2)
    assert all_printed(again) == all_printed(tiny)


def test_options_of_a_file_that_are_not_known_are_named(tiny, tmp_path, printed):
    written = {"infeed": {"prefetch_depth": 9, "colour": "blue"}, "weather": {"rain": True}}
    (tmp_path / "ipu_options.json").write_text(json.dumps(written))
    with pytest.warns(UserWarning, match="options that this version does not know.*: `colour`, `weather`"):
        tiny.load_assets(tmp_path)
    assert re.search(r"prefetch_depth\s*= 9$", printed(tiny, "infeed_queue"), re.M)


BAD_FILES = {
    "{": "Expecting property name",
    "[]": r"there should be a JSON object, but there is `\[\]`",
    '{"infeed": 3}': "infeed queue options: there should be a JSON object, but there is `3`",
    '{"infeed": {"prefetch_depth": -4}}': "infeed queue options: .*prefetch_depth",
    '{"outfeed": {"buffer_depth": "many"}}': "outfeed queue options: .*buffer_depth",
    '{"accumulation": {"gradient_accumulation_steps_per_replica": 0}}': "to be a positive integer, but got 0",
    '{"accumulation": {"gradient_accumulation_reduction_method": {"enum": "X", "name": "Y"}}}': "no value of an option",
    '{"pipelining": {"device_mapping": "abc"}}': "Expected `device_mapping` to be a list of integers",
    '{"pipelining": {"gradient_accumulation_dtype": {"dtype": "no_such"}}}': "no value of an option",
    '{"replication": {"replicated_metric_reduction_method": "most"}}': "Cannot parse 'most'",
    '{"asynchronous_callbacks": 1}': "`asynchronous_callbacks` must be True or False, but is 1",
    '{"pipeline_stages": {"dense": 0}}': "should be a list of pairs",
    '{"pipeline_stages": [["dense", "first"]]}': "stage of layer `dense` should be a number from 0, but is `'first'`",
}


def test_bad_options_of_a_file_are_refused_as_the_methods_refuse_them(scoped, tmp_path, all_printed):
    model = scoped(lambda: keras.Sequential([keras.Input([2]), layers.Dense(1, name="dense")]))
    before = all_printed(model)
    together = {"infeed": {"optimise_latency": 2}, "outfeed": {"buffer_depth": 0}, "asynchronous_callbacks": None}
    faults = r"3 faults:(.|\n)*optimise_latency(.|\n)*buffer_depth(.|\n)*asynchronous"
    for text, words in {**BAD_FILES, json.dumps(together): faults}.items():
        (tmp_path / "ipu_options.json").write_text(text)
        message = rf"cannot be read from `ipu_options.json` in its file: (.|\n)*{words}"
        with pytest.raises(ValueError, match=message):
            model.load_assets(tmp_path)
        assert all_printed(model) == before


def test_weights_of_a_file_with_bad_options_are_read_without_them(tiny, make_tiny, scoped, tmp_path):
    good, bad = tmp_path / "good.keras", tmp_path / "bad.keras"
    tiny.set_infeed_queue_options(prefetch_depth=5)
    tiny.save(good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as copy:
        for name in source.namelist():
            copy.writestr(name, b"{" if name.endswith("ipu_options.json") else source.read(name))
    with pytest.raises(ValueError, match=r"outside of `strategy.scope\(\)` gives the model without its options"):
        scoped(lambda: keras.models.load_model(bad))
    plain: Any = keras.models.load_model(bad)
    other = make_tiny()
    other.layers[0].kernel.assign(np.zeros([6, 3]))
    other.load_weights(bad)
    for one in (plain, other):
        assert np.array_equal(one.get_weights()[0], tiny.get_weights()[0])
