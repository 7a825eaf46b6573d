"""Has the passes that save memory in the graphs that Inductor is about to lower: they run ops in
place, and drop unused outputs."""
