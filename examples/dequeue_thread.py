"""Reads results while the program still runs: a thread dequeues, and the main thread waits for the run."""

import threading

import tensorflow as tf

import tensorflow_ipu as ipu

STEPS = 8

results_read = threading.Semaphore(0)


def elements():
    """The data: each number but the first waits until the result of the one before it has been read."""
    for i in range(STEPS):
        if i > 0:
            results_read.acquire()
        yield i


dataset = tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([], tf.int32))


def read(queue, run_ended):
    """Reads until the run has ended, and then once more, for what came last."""
    last_look = False
    while not last_look:
        last_look = run_ended.wait(0.01)
        # This loop ends where the queue is empty at the moment; it does not wait for the program.
        for result in queue:
            print(f"{int(result['x'])} squared is {int(result['square'])}")
            results_read.release()


@tf.function(jit_compile=True)
def program(iterator, queue):
    """Squares what comes."""
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
        # If nobody read the results meanwhile, this run would wait for its data for ever.
        strategy.run(program, args=(iter(dataset), queue))
    finally:
        run_ended.set()  # Even where the run fails, the thread must end.
        reader.join()
print("The run has ended: all results but the last had been read before.")
