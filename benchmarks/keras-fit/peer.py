"""Trains a network outside TensorFlow: `peer.py eager|compiled|jax NETWORK DATA BATCH`.

`DATA` is a file of NumPy arrays `x` and `y`. The script prints the seconds of the first step. Then it runs an epoch for each
line of its input, and prints a line. The loop is the shortest there is: batches are made before, and losses are not read.
"""

from __future__ import annotations

import functools
import sys
import time

import numpy as np


def torch_steps(name, compiled, batches):
    """Returns a function that makes a step for each of the batches in PyTorch, and the batches as tensors."""
    import torch
    import torch_networks
    from torch.nn import functional

    network = torch_networks.NETWORKS[name]()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    forward = torch.compile(network) if compiled else network

    def steps(batches):
        for x, y in batches:
            optimizer.zero_grad()
            outputs = forward(x)
            if y.is_floating_point():
                images, distance = outputs
                loss = functional.binary_cross_entropy(images, y) + distance
            else:
                loss = functional.cross_entropy(outputs, y)
            loss.backward()
            optimizer.step()

    def tensor(array):
        made = torch.from_numpy(array)
        return made.permute(0, 3, 1, 2).contiguous() if made.ndim == 4 else made

    return steps, [(tensor(x), tensor(y if y.dtype == np.float32 else y.astype(np.int64))) for x, y in batches]


def jax_steps(name, batches):
    """Returns a function that makes a step for each of the batches in JAX, of Keras's network, and the batches."""
    import jax
    from networks import NETWORKS

    model = NETWORKS[name].compiled()
    loss, optimizer = model.loss, model.optimizer
    optimizer.build(model.trainable_variables)
    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = [[one.value for one in kind] for kind in variables]

    def loss_of(trainable, others, x, y):
        outputs, others, added = model.stateless_call(trainable, others, x, training=True, return_losses=True)
        return loss(y, outputs) + sum(added), others

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        trainable, others, slots = state
        gradients, others = jax.grad(loss_of, has_aux=True)(trainable, others, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return [trainable, others, slots]

    def steps(batches):
        nonlocal state
        for x, y in batches:
            state = step(state, x, y)
        jax.block_until_ready(state)

    return steps, jax.device_put(batches)


def main():
    """Serves epochs."""
    way, name, path, batch = sys.argv[1:]
    with np.load(path) as data:
        x, y = data["x"], data["y"]
    size = int(batch)
    batches = [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]
    steps, batches = jax_steps(name, batches) if way == "jax" else torch_steps(name, way == "compiled", batches)
    start = time.perf_counter()
    steps(batches[:1])
    print(time.perf_counter() - start, flush=True)
    for _ in sys.stdin:
        steps(batches)
        print(flush=True)


if __name__ == "__main__":
    main()
