"""Ctrl-C in a run ends it soon, as a `KeyboardInterrupt`, and leaves queues and process fit for more."""

from __future__ import annotations

PREPARE = """
    import os
    import signal
    import threading
    import time

    import tensorflow as tf

    import tensorflow_ipu as ipu

    strategy = ipu.IPUStrategy()
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(iterator, queue, steps):
        for _ in tf.range(steps):
            queue.enqueue(next(iterator))

    pressed_at = None

    def press(after):
        global pressed_at
        count = 0
        while count < after:
            count += len(queue.dequeue())
        pressed_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted(iterator, steps, after):
        thread = threading.Thread(target=press, args=[after])
        thread.start()
        try:
            strategy.run(program, args=(iterator, queue, steps))
        except KeyboardInterrupt as exc:
            assert exc.__suppress_context__
            assert time.monotonic() - pressed_at < 60
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.set_wakeup_fd(-1) == -1
            print("interrupted")
        thread.join()
"""


# TensorFlow makes an exception of the run's end, and Python's handler raised in there: a RuntimeError of pybind11.
def test_interrupt_in_a_run_that_waits_for_data_raises_keyboard_interrupt(run_script):
    code = (
        PREPARE
        + """
    gate = threading.Event()

    def elements():
        yield 1
        gate.wait()
        yield from [2, 3]

    with strategy.scope():
        iterator = iter(tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([], tf.int32)))
        interrupted(iterator, tf.constant(2), after=1)
        gate.set()
        strategy.run(program, args=(iterator, queue, tf.constant(2)))
        print(queue.dequeue().numpy().tolist())
    """
    )
    assert run_script(code).stdout == "interrupted\n[2, 3]\n"


def test_interrupt_in_a_run_that_is_busy_raises_keyboard_interrupt(run_script):
    code = (
        PREPARE
        + """
    with strategy.scope():
        iterator = iter(tf.data.Dataset.from_tensors(1).repeat())
        interrupted(iterator, tf.constant(1_000_000_000), after=1000)
        queue.dequeue()
        strategy.run(program, args=(iterator, queue, tf.constant(3)))
        print(queue.dequeue().numpy().tolist())
    """
    )
    assert run_script(code).stdout == "interrupted\n[1, 1, 1]\n"
