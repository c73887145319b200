"""Files that stay open in a program which closes all descriptors and opens its own."""

import os

from profilerkit.rundir.files import AppendFile, Descriptor


def taken_over(tmp_path, number):
    """A file of the program's, by the same number."""
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    os.dup2(mine, number)
    return mine


def test_records_go_on_into_their_own_file(tmp_path):
    file = AppendFile(tmp_path / "records")
    file.append(b"one\n")
    mine = taken_over(tmp_path, file._file.number)
    file.append(b"two\n")
    file.close()
    assert (tmp_path / "records").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "mine").read_bytes() == b""
    os.close(mine)


def test_what_became_somebody_elses_is_not_closed(tmp_path):
    file = Descriptor(tmp_path / "ours", os.O_WRONLY | os.O_CREAT)
    assert file.is_ours
    mine = taken_over(tmp_path, file.number)
    assert not file.is_ours
    file.close()
    os.fstat(file.number)
    os.close(file.number)
    assert not file.is_ours
    file.close()
    os.close(mine)
