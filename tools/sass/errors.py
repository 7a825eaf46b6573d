"""Defines the errors that end the report. Each is printed as one line."""


class ReportError(RuntimeError):
    """An error that prevents the report. Its message says what to do."""


class MissingTool(ReportError):
    """A program that the report needs is missing. The message says how to install it."""
