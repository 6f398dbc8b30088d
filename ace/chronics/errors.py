"""The one error of this package."""

from ace.config.errors import OneLine


class ChronicsError(OneLine, RuntimeError):
    """A week cannot be made, read or trusted. The message is one line for the person who asked for it."""
