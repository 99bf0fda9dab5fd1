"""Errors that are the user's to fix: their message is all that needs to be shown."""


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the key and the fix."""
