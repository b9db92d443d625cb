"""The gradients of micro-batches, and what an optimizer makes of them."""
