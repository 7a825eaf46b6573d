"""Replaces the sites that the rules find, or leaves them with a reason, and reports both."""
