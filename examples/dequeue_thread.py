"""Reads results in a thread while the program runs and the main thread waits for the run."""

import threading

import tensorflow as tf

import tensorflow_ipu as ipu

STEPS = 8

results_read = threading.Semaphore(0)


def elements():
    """Yields numbers. Each number waits until the result of the previous one has been read."""
    for i in range(STEPS):
        if i > 0:
            results_read.acquire()
        yield i


dataset = tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([], tf.int32))


def read(queue, run_ended):
    """Reads results until the run has ended, and then once more for the last results."""
    is_last = False
    while not is_last:
        is_last = run_ended.wait(0.01)
        # This loop ends when the queue is empty. It does not wait for the program.
        for result in queue:
            print(f"{int(result['x'])} squared is {int(result['square'])}")
            results_read.release()


@tf.function(jit_compile=True)
def program(iterator, queue):
    """Enqueues each element with its square."""
    for _ in tf.range(STEPS):
        x = next(iterator)
        queue.enqueue({"x": x, "square": x * x})


strategy = ipu.IPUStrategy()
with strategy.scope():
    queue = ipu.IPUOutfeedQueue()
    run_ended = threading.Event()
    reader = threading.Thread(target=read, args=(queue, run_ended))
    reader.start()
    try:
        # Without a thread that reads the results, this run would wait for its data forever.
        strategy.run(program, args=(iter(dataset), queue))
    finally:
        run_ended.set()  # The thread must also end if the run fails.
        reader.join()
print("The run has ended: all results but the last had been read before.")
