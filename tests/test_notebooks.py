"""Cells of a real kernel: scopes, interrupts, what programs print; and the notebooks of the examples."""

import gc
import os
import re
import runpy
import textwrap
import threading
from collections import Counter
from pathlib import Path

import keras
import nbformat
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

import tensorflow_ipu as ipu
from tensorflow_ipu._base import lifetimes

ROOT = Path(__file__).resolve().parents[1]
MAKE = runpy.run_path(str(ROOT / "build_tools" / "notebooks.py"))
SCRIPTS = sorted(MAKE["SCRIPTS"].glob("*.py"))

# Sends Ctrl-C once a program runs, until it has ended: a signal that comes before is not the program's.
SETUP = """
import os, signal, threading, time
import keras, numpy as np, tensorflow as tf
import tensorflow_ipu as ipu
from tensorflow_ipu._base.active_runs import active

strategy = ipu.IPUStrategy()

@tf.function(jit_compile=True)
def take(iterator):
    return next(iterator)

def waiting(*values):
    "An iterator whose dataset has these, and then waits."
    global queue
    queue = tf.queue.FIFOQueue(9, [tf.int32], [[]])
    queue.enqueue_many([list(values)])
    with strategy.scope():
        return iter(tf.data.Dataset.range(9).map(lambda _: queue.dequeue()))

def interrupted(run):
    ended = threading.Event()
    def send():
        while not ended.wait(1.0):
            if active():
                os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        run()
    finally:
        ended.set()
        thread.join()
        queue.close(cancel_pending_enqueues=True)
"""
# A cell, and what stands below it.
CELLS = (
    (SETUP, ""),
    ("strategy.scope().__enter__();", ""),
    ("print(tf.distribute.get_strategy() is strategy, tf.Variable(1.0).device[-5:])", "True IPU:0"),
    ("await __import__('asyncio').sleep(0)\nmodel = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])", ""),
    (
        """
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), batch_size=4, verbose=1)
        print(model.weights[0].value.device[-5:], int(model.optimizer.iterations))
        """,
        "2/2 .* loss: .* IPU:0 2",
    ),
    ("strategy.scope().__exit__(None, None, None)", ""),
    ("print(tf.distribute.has_strategy(), tf.Variable(1.0).device[-5:])", "False CPU:0"),
    (
        """
        @tf.function(jit_compile=True)
        def program(x):
            ipu.ops.internal_ops.print_tensor(x, "a tensor")
            tf.print("twice", 2 * x)
            return x

        print("first", float(strategy.run(program, [tf.constant(1.0)])))
        """,
        "a tensor: 1 twice 2 first 1.0",
    ),
    ("strategy.run(program, [tf.constant(2.0)]);", "a tensor: 2 twice 4"),
    ("iterator = waiting(7)\nprint(int(strategy.run(take, [iterator])))", "7"),
    ("interrupted(lambda: strategy.run(take, [iterator]))", "KeyboardInterrupt"),
    ("print(float(strategy.run(program, [tf.constant(3.0)])))", "a tensor: 3 twice 6 3.0"),
    # The kernel's own handler only told the event loop, which stood still, and the cell waited for ever.
    (
        "await __import__('asyncio').sleep(0)\niterator = waiting()\ninterrupted(lambda: strategy.run(take, [iterator]))",
        "KeyboardInterrupt",
    ),
    ("iterator = None\nprint(float(strategy.run(program, [tf.constant(4.0)])))", "a tensor: 4 twice 8 4.0"),
)


def below(cell):
    """What stands below a cell, in one line."""
    texts = [output.get("ename") or output.get("text", "") for output in cell.outputs if output.get("name") != "stderr"]
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", "".join(texts)).split())


@pytest.fixture
def run_cells(monkeypatch, tmp_path):
    """Runs cells in one kernel, from an empty folder; gives what stands below each."""
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TENSORFLOW_IPU_PROGRESS", "PATH", *MAKE["FOLDERS"]):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # What is set meanwhile is put back.
    monkeypatch.chdir(tmp_path)

    def run(*cells):
        made = [nbformat.v4.new_code_cell(cell) for cell in cells]
        for cell in made:
            cell.metadata["tags"] = ["raises-exception"]
        MAKE["run"](nbformat.v4.new_notebook(cells=made))
        return [below(cell) for cell in made]

    return run


# Scopes are in a task of each cell's own, with a copy of the context of the kernel.
def test_cells_share_scopes_show_what_programs_print_and_end_on_interrupts(run_cells):
    found = run_cells(*(textwrap.dedent(source).strip() for source, _ in CELLS))
    for (source, expected), text in zip(CELLS, found, strict=True):
        assert re.fullmatch(expected, text), f"{source}\nshows: {text}"


FRESH = "%reset -f\nimport keras, tensorflow_ipu as ipu\nipu.config.reset_ipu_configuration()\nkeras.backend.clear_session()"


def test_the_notebooks_of_the_examples_run(run_cells):
    """In one kernel, to import TensorFlow once; `make notebooks` has one for each."""
    cells = []
    for script in SCRIPTS:
        cells += [FRESH, *(cell.source for cell in MAKE["notebook_of"](script).cells if cell.cell_type == "code")]
    found = run_cells(*cells)
    assert [
        (cell, text) for cell, text in zip(cells, found, strict=True) if re.search(r"(Error|Exception)$", text)
    ] == []
    assert "y = 3.00 x + 1.00, loss 0.0000" in found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_is_of_its_script_was_run_and_tells_nothing_of_the_machine(script):
    text = script.with_suffix(".ipynb").read_text()
    notebook, made = nbformat.reads(text, as_version=4), MAKE["notebook_of"](script)
    remedy = f"`make notebooks` makes {script.stem}.ipynb anew"
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ], remedy
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), remedy
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert not re.search(r"(?<![\w./])/(home|root|tmp|work|usr|opt|Users)/|site-packages|ipykernel_\d|Warning", text)
    assert len(text) < 2_000_000
    assert "text/html" in text


def test_there_are_notebooks():
    assert [script.stem for script in SCRIPTS] == ["first_program", "keras_to_pipeline", "port_a_script", "will_it_fit"]


# What Keras and TensorFlow keep for each program that is compiled is theirs: see `docs/notebooks.md`.
def test_a_cell_that_is_run_again_leaves_no_object_and_no_thread(configure):
    x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)

    def cell(tiles):
        configure(1, io_tiles__num_io_tiles=tiles)
        strategy = ipu.IPUStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            infeed, outfeed = ipu.IPUInfeedQueue(tf.data.Dataset.range(3, output_type=tf.int32)), ipu.IPUOutfeedQueue()
            _ = infeed.initializer
        model.fit(x, y, batch_size=4, verbose=0)

        @tf.function(jit_compile=True)
        def program():
            ipu.loops.repeat(3, outfeed.enqueue, [], infeed)

        strategy.run(program)
        assert len(outfeed.dequeue()) == 3
        assert "1 IPU" in str(strategy._repr_html_())

    def alive():
        gc.collect()
        lifetimes.call_due()
        kinds = Counter(type(each) for each in gc.get_objects())
        ours = {kind: count for kind, count in kinds.items() if kind.__module__.startswith(("tensorflow_ipu", "keras"))}
        return ours | {kind: kinds[kind] for kind in (tf.Graph, FuncGraph, type(tf.constant(0)))}

    cell(32)
    cell(64)
    before, threads = alive(), threading.active_count()
    for tiles in (32, 64, 32, 64, 32):
        cell(tiles)
    grown = {kind.__name__: count - before.get(kind, 0) for kind, count in alive().items()}
    assert {name: count for name, count in grown.items() if count >= 5 and name != "Trace"} == {}
    assert threading.active_count() <= threads
