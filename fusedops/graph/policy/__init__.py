"""Decides whether a replacement pays, according to the policy table of the machine."""
