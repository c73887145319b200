"""Define the errors: each says what failed, why, and what to do about it."""


class ProfilerkitError(Exception):
    """Report a failure of this package; the base of all its errors.

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

    @property
    def in_one_line(self) -> str:
        """Return what failed, why, and what to do, for a warning."""
        return "; ".join(part for part in (self.what, self.cause, self.hint) if part)


def raised(error: BaseException) -> str:
    """Return what kind of exception it is and what it says, in one line without a full stop.

    >>> raised(ValueError("no  number: 12a."))
    'ValueError: no number: 12a'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(" :").removesuffix(".")


class UsageError(ProfilerkitError):
    """Reject a call or command line that cannot be carried out as given."""


class ConfigError(UsageError):
    """Reject a setting whose value is not allowed."""


class UnreadableInputError(ProfilerkitError):
    """Report a path in which nothing can be analyzed."""


def unread(path: object, error: OSError) -> UnreadableInputError:
    """Return the error for a file that the system refuses to open."""
    return UnreadableInputError(
        f"{path} cannot be read", cause=error.strerror or str(error), hint="check its permissions and the disk"
    )


class RunDirectoryError(ProfilerkitError):
    """Report a run directory that cannot be created or read."""


class CaptureError(ProfilerkitError):
    """Report that recording cannot start; a profile block turns it into a warning."""


class InvariantError(ProfilerkitError):
    """Report a bug of the analysis, for example parts that do not add up to the step."""
