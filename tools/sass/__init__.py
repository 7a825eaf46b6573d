"""The parts of tools/sass_report.py."""
