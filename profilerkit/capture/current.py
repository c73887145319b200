"""The recording of this process: starts it, hands it to a block, closes it with the program."""

import os
import tempfile
from pathlib import Path

from profilerkit.capture import environment
from profilerkit.capture.ending import at_exit
from profilerkit.capture.guard import announce, raised_by_handler
from profilerkit.capture.place import Place
from profilerkit.capture.place import place as place_of
from profilerkit.capture.session import Session
from profilerkit.capture.settings import Settings, take_options
from profilerkit.errors import CaptureError
from profilerkit.rundir.places import claim, private_place
from profilerkit.rundir.writer import RankWriter


class _State:
    """The session that records in this process, and how many there were."""

    active: "Session | None" = None
    started: int = 0


def active() -> "Session | None":
    """The session that records in this process; one whose end was interrupted does not."""
    session = _State.active
    return None if session is None or session.is_closed else session


def _ended() -> None:
    _State.active = None


def start(settings: Settings, *, until_exit: bool = False) -> "Session | None":
    """A running session; ``None``, with a warning, inside the block of another one.

    A session that runs ``until_exit`` of the program is not closed by a block: the block that starts first takes it
    over and ends it. What ``profilerkit run`` was told goes before ``settings``.

    Raises:
        CaptureError: no directory can be written.
    """
    outer = active()
    if outer is not None:
        if outer.until_exit:
            outer.until_exit = False
            return outer
        announce("a profile block inside another one records nothing; the outer one continues")
        return None
    order = take_options(os.environ)
    if order is not None:
        settings = order.settings(settings)
    _State.started += 1
    place = place_of(os.environ, _State.started)
    wanted = Path.cwd() / (settings.path or Path("runs") / environment.script_name())
    run, writer = open_run(wanted, place)
    session = Session(settings, place, run, writer, _ended)
    begun = False
    try:
        session.begin()
        begun = True
    except (OSError, RuntimeError) as error:
        if raised_by_handler(error):
            raise
        if isinstance(error, OSError):
            raise CaptureError(f"cannot write the run directory {run}", cause=str(error)) from error
        raise CaptureError("cannot record", cause=str(error), hint="the system cannot start another thread") from error
    finally:
        if not begun:  # an interrupt among what may come
            session.take_out()
    _State.active = session
    session.until_exit = until_exit
    at_exit(_close_what_is_open)
    return session


def _close_what_is_open() -> None:
    """At the end of the program: a recording without a block, or a block that was never left."""
    session = _State.active
    if session is not None:
        try:
            session.close_at_exit()
        except KeyboardInterrupt:
            announce(f"interrupted at its end; `profilerkit analyze {session.run}` makes the report")


def _disarm_in_child() -> None:
    """A forked child (a DataLoader worker) records nothing."""
    session, _State.active = _State.active, None
    if session is not None:
        session.disarm()


os.register_at_fork(after_in_child=_disarm_in_child)


def open_run(wanted: Path, place: Place) -> tuple[Path, RankWriter]:
    """The run directory and its writer; in ``$TMPDIR``, with a warning, when ``wanted`` cannot be written.

    Raises:
        CaptureError: neither place can be written.
    """
    try:
        run = claim(wanted, place.launch_id, place.rank)
        return run, RankWriter(run, place.rank)
    except OSError as error:
        if raised_by_handler(error):
            raise
        try:
            run = claim(private_place() / wanted.name, place.launch_id, place.rank)
            writer = RankWriter(run, place.rank)
        except OSError as second:
            raise CaptureError(
                f"cannot write {wanted}",
                cause=f"{error}. A directory in {tempfile.gettempdir()} failed too: {second}",
                hint="name another path",
            ) from second
        announce(f"{wanted} cannot be written ({error.strerror}); recording to {run}")
        return run, writer
