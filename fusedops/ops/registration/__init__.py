"""Loads the libraries, and registers their ops for autograd, vmap, autocast and forward mode."""
