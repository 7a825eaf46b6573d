"""Registers the families of ops: libraries, autograd, batching, autocast and modes."""
