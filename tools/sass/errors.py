"""Errors of the report, which end it with one line."""


class ReportError(RuntimeError):
    """An error that prevents the report, with the fix."""


class MissingTool(ReportError):
    """A program that the report needs is missing; the message says how to install it."""
