"""Trains a network in PyTorch or JAX: `peer.py eager|compiled|jax NETWORK DATA BATCH`.

`DATA` is a file of NumPy arrays `x` and `y`. The script prints the seconds of the first step. Then, for each line of its
input, it runs an epoch and prints a line. The loop does as little as possible: batches are in memory, and losses are not
read.
"""

from __future__ import annotations

import functools
import sys
import time

import numpy as np


def torch_steps(name, compiled, batches):
    """Returns a function that runs a PyTorch step for each batch, and the batches as tensors."""
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
        value = torch.from_numpy(array)
        return value.permute(0, 3, 1, 2).contiguous() if value.ndim == 4 else value

    return steps, [(tensor(x), tensor(y if y.dtype == np.float32 else y.astype(np.int64))) for x, y in batches]


def jax_steps(name, batches):
    """Returns a function that runs a JAX step of Keras's network for each batch, and the batches on the device."""
    import jax
    from networks import NETWORKS

    model = NETWORKS[name].compiled()
    loss, optimizer = model.loss, model.optimizer
    optimizer.build(model.trainable_variables)
    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state = [[variable.value for variable in group] for group in variables]

    def loss_of(trainable, fixed, x, y):
        outputs, fixed, added = model.stateless_call(trainable, fixed, x, training=True, return_losses=True)
        return loss(y, outputs) + sum(added), fixed

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, x, y):
        trainable, fixed, slots = state
        gradients, fixed = jax.grad(loss_of, has_aux=True)(trainable, fixed, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return [trainable, fixed, slots]

    def steps(batches):
        nonlocal state
        for x, y in batches:
            state = step(state, x, y)
        jax.block_until_ready(state)

    return steps, jax.device_put(batches)


def main():
    """Runs an epoch for each line of the standard input."""
    way, name, path, batch = sys.argv[1:]
    with np.load(path) as data:
        x, y = data["x"], data["y"]
    size = int(batch)
    batches = [(x[start : start + size], y[start : start + size]) for start in range(0, len(x), size)]
    steps, batches = jax_steps(name, batches) if way == "jax" else torch_steps(name, way == "compiled", batches)
    start = time.perf_counter()
    steps(batches[:1])
    print(time.perf_counter() - start, flush=True)
    for _ in sys.stdin:
        steps(batches)
        print(flush=True)


if __name__ == "__main__":
    main()
