"""The exception tree: every error says what failed, why, and what to do about it."""


class ProfilerkitError(Exception):
    """Base of all errors this package raises on purpose.

    Attributes:
        what: what failed, lower case, no full stop.
        cause: why it failed, or an empty string when the message says it all.
        hint: what the reader can do, or an empty string.
    """

    def __init__(self, what: str, *, cause: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"error: {self.what}"]
        if self.cause:
            lines.append(f"cause: {self.cause}")
        if self.hint:
            lines.append(f"hint:  {self.hint}")
        return "\n".join(lines)


class UsageError(ProfilerkitError):
    """The call or the command line cannot be carried out as it was given."""


class ConfigError(UsageError):
    """A setting has a value that is not allowed."""


class UnreadableInputError(ProfilerkitError):
    """A path exists but nothing that can be analysed was found in it."""


def unread(path: object, error: OSError) -> UnreadableInputError:
    """What the system says of a file that it does not let anybody read."""
    return UnreadableInputError(
        f"{path} cannot be read", cause=error.strerror or str(error), hint="check its permissions and the disk"
    )


class RunDirectoryError(ProfilerkitError):
    """A run directory cannot be created, or its manifest cannot be read."""


class CaptureError(ProfilerkitError):
    """Capture cannot start. Raised before the user's loop begins, never inside it."""


class InvariantError(ProfilerkitError):
    """The analysis broke one of its own promises, for example parts that do not sum to the step."""
