"""Reading a graph: what its nodes compute, where their memory is, and in which modes they run."""
