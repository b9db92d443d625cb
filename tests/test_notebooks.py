"""Cells in a real kernel: scopes, interrupts and the output of programs; and the notebooks of the examples."""

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

# `interrupted` sends Ctrl-C each second while a program runs; an earlier signal would not interrupt the program.
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
    "Returns an iterator over a dataset that has these values and then blocks."
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
# The source of each cell, and the text below it.
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
    # The handler of the kernel only notifies the event loop, which was blocked, so the cell once waited forever.
    (
        "await __import__('asyncio').sleep(0)\niterator = waiting()\ninterrupted(lambda: strategy.run(take, [iterator]))",
        "KeyboardInterrupt",
    ),
    ("iterator = None\nprint(float(strategy.run(program, [tf.constant(4.0)])))", "a tensor: 4 twice 8 4.0"),
)


def below(cell):
    """Returns the output below a cell as one line."""
    texts = [output.get("ename") or output.get("text", "") for output in cell.outputs if output.get("name") != "stderr"]
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", "".join(texts)).split())


@pytest.fixture
def run_cells(monkeypatch, tmp_path):
    """`run_cells(*cells)` runs cells in one kernel, in an empty folder, and returns the output below each cell."""
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TENSORFLOW_IPU_PROGRESS", "PATH", *MAKE["FOLDERS"]):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # `monkeypatch` restores the variables after the test.
    monkeypatch.chdir(tmp_path)

    def run(*cells):
        code_cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        for cell in code_cells:
            cell.metadata["tags"] = ["raises-exception"]
        MAKE["run"](nbformat.v4.new_notebook(cells=code_cells))
        return [below(cell) for cell in code_cells]

    return run


# Each cell runs in a task of its own, with a copy of the kernel's context.
def test_cells_share_scopes_show_what_programs_print_and_end_on_interrupts(run_cells):
    texts = run_cells(*(textwrap.dedent(source).strip() for source, _ in CELLS))
    for (source, expected), text in zip(CELLS, texts, strict=True):
        assert re.fullmatch(expected, text), f"{source}\nshows: {text}"


FRESH = "%reset -f\nimport keras, tensorflow_ipu as ipu\nipu.config.reset_ipu_configuration()\nkeras.backend.clear_session()"


def test_the_notebooks_of_the_examples_run(run_cells):
    """All notebooks run in one kernel, which imports TensorFlow once; `make notebooks` uses a kernel for each."""
    cells = []
    for script in SCRIPTS:
        cells += [FRESH, *(cell.source for cell in MAKE["notebook_of"](script).cells if cell.cell_type == "code")]
    texts = run_cells(*cells)
    assert [
        (cell, text) for cell, text in zip(cells, texts, strict=True) if re.search(r"(Error|Exception)$", text)
    ] == []
    assert "y = 3.00 x + 1.00, loss 0.0000" in texts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_is_of_its_script_was_run_and_tells_nothing_of_the_machine(script):
    text = script.with_suffix(".ipynb").read_text()
    notebook, generated = nbformat.reads(text, as_version=4), MAKE["notebook_of"](script)
    remedy = f"`make notebooks` makes {script.stem}.ipynb anew"
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in generated.cells
    ], remedy
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), remedy
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert not re.search(r"(?<![\w./])/(home|root|tmp|work|usr|opt|Users)/|site-packages|ipykernel_\d|Warning", text)
    assert len(text) < 2_000_000
    assert "text/html" in text


def test_there_are_notebooks():
    assert [script.stem for script in SCRIPTS] == ["first_program", "keras_to_pipeline", "port_a_script", "will_it_fit"]


# Keras and TensorFlow keep some objects for each compiled program: see `docs/notebooks.md`.
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
        kinds = Counter(type(item) for item in gc.get_objects())
        counts = {
            kind: count for kind, count in kinds.items() if kind.__module__.startswith(("tensorflow_ipu", "keras"))
        }
        return counts | {kind: kinds[kind] for kind in (tf.Graph, FuncGraph, type(tf.constant(0)))}

    cell(32)
    cell(64)
    earlier, threads = alive(), threading.active_count()
    for tiles in (32, 64, 32, 64, 32):
        cell(tiles)
    grown = {kind.__name__: count - earlier.get(kind, 0) for kind, count in alive().items()}
    assert {name: count for name, count in grown.items() if count >= 5 and name != "Trace"} == {}
    assert threading.active_count() <= threads
