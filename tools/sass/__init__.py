"""Has the modules of tools/sass_report.py."""
