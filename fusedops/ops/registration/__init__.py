"""What the families of ops register with: the libraries, autograd, batching, autocast and modes."""
