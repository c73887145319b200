"""Replace methods of a framework's object while a recording runs, and restore them afterwards."""

from typing import Any

from profilerkit.profiling import Profile


class Replaced:
    """Replace one method of one object; a subclass says what a call does.

    One of ours that is there already is replaced, not wrapped: its recording is over, or this one joins it.

    Attributes:
        inner: the method that it replaces.
    """

    def __init__(self, owner: Any, name: str, prof: Profile) -> None:
        """Set ``owner.name`` to this, on the object alone."""
        found = getattr(owner, name)
        is_ours = isinstance(found, Replaced)
        self.inner = found.inner if is_ours else found
        self._was_set: bool = found._was_set if is_ours else name in vars(owner)
        self._owner, self._name = owner, name
        self._prof = prof
        setattr(owner, name, self)

    def put_back(self) -> None:
        """Restore the method, unless somebody else has replaced it since."""
        if vars(self._owner).get(self._name) is not self:
            return
        if self._was_set:
            setattr(self._owner, self._name, self.inner)
        else:
            delattr(self._owner, self._name)


class TimedSave(Replaced):
    """Time a method that saves as a checkpoint."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns."""
        with self._prof.phase("checkpoint"):
            return self.inner(*args, **kwargs)
