"""Whether a replacement pays, by the times that a table of the machine has."""
