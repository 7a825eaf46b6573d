"""Has the passes that change how memory is used in the graphs that Inductor is about to lower: they
run ops in place, drop unused outputs, and say what the backward pass saves and where it adds."""
