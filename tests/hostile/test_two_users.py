"""Another user of the machine cannot have us write into a file of ours, nor read what we recorded."""

import os
import stat
import warnings
from pathlib import Path

import pytest

from profilerkit.capture.distributed import Place
from profilerkit.capture.session import open_run
from profilerkit.rundir.files import write_document, write_whole
from profilerkit.rundir.layout import Launch
from profilerkit.rundir.places import claim

VICTIM, ATTACKER = 12_345, 12_346
PLACE = Place(0, 0, 1, "a launch")


def as_user(user, work):
    """What ``work`` says, run by another user in a process of its own."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o022)
            said = str(work())
        except BaseException as error:  # noqa: BLE001  the parent says it
            said = f"failed: {error!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as file:
        said = file.read()
    assert not said.startswith("failed"), said
    return said


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A directory for temporary files as ``/tmp`` is, in a place that everybody can reach."""
    if os.getuid():
        pytest.skip("only root can be two users")
    for place in (tmp_path, *tmp_path.parents[:3]):
        place.chmod(place.stat().st_mode | 0o055)
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def recorded(where):
    """A run of somebody whose directory cannot be written; where it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run, writer = open_run(where / "train", PLACE)
    writer.close()
    return run


def test_a_link_in_the_known_place_is_not_followed(tmp_path, shared):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    os.chown(precious, VICTIM, VICTIM)

    def plant():
        rank = shared / f"profilerkit-{VICTIM}" / "train" / "rank_00000"
        rank.mkdir(parents=True)
        for name in ("end.json.part", "end.json", "events.bin", "meta.json.part", "run.json.part"):
            (rank / name).symlink_to(precious)
        (rank.parent / "run.json.part").symlink_to(precious)

    as_user(ATTACKER, plant)
    run = as_user(VICTIM, lambda: recorded(tmp_path))
    assert precious.read_text() == "mine"
    assert f"{shared}/profilerkit-{VICTIM}-" in run
    assert stat.S_IMODE(Path(run).parent.stat().st_mode) == 0o700


def test_a_link_to_a_directory_of_ours_is_not_used(tmp_path, shared):
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, VICTIM, VICTIM)
    as_user(ATTACKER, lambda: (shared / f"profilerkit-{VICTIM}").symlink_to(home))
    as_user(VICTIM, lambda: recorded(tmp_path))
    assert not list(home.iterdir())


def test_what_was_recorded_is_the_owners_alone(tmp_path, shared):
    run = as_user(VICTIM, lambda: recorded(tmp_path))
    own = as_user(VICTIM, lambda: claim(shared / "mine", "a", 0))
    for place in (run, own):
        with pytest.raises(AssertionError, match="Permission denied"):
            as_user(ATTACKER, lambda place=place: list(Path(place).iterdir()))


@pytest.mark.parametrize("write", [write_document, lambda path, _: write_whole(path, b"ours")])
def test_no_link_beside_a_file_is_written_through(tmp_path, write):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    target = tmp_path / "end.json"
    target.symlink_to(precious)
    (tmp_path / "end.json.part").symlink_to(precious)
    try:
        write(target, Launch(id="a"))
    except OSError:
        assert target.is_symlink()
    assert precious.read_text() == "mine"


def test_a_directory_of_the_known_name_is_used_again_and_closed(shared):
    place = shared / f"profilerkit-{os.getuid()}"
    place.mkdir()
    place.chmod(0o777)
    (shared / "file").touch()
    run = recorded(shared / "file")
    assert run.parent == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
