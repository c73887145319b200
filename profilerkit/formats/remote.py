"""Files that lie elsewhere, fetched by fsspec into a private directory, so that every reader works on them."""

import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profilerkit.errors import ProfilerkitError, UnreadableInputError, UsageError
from profilerkit.model import revise
from profilerkit.secrets import masked
from profilerkit.units import format_bytes

if TYPE_CHECKING:
    from profilerkit.model.report import Report

logger = logging.getLogger(__name__)

#: A trace of one step was told to be 2.2 GB (kineto #595), one of ten 1.8 GB (xprof #720); this is ten times as much.
MOST_FILE_BYTES = 22_000_000_000
#: What a fetch leaves free of the disk: others write there too (a choice).
_LEFT_FREE_RATIO = 0.1
#: Files of one place; a job of 16,384 ranks has a summary and maybe a trace of each (a choice).
_MOST_FILES = 100_000
_CHUNK_BYTES = 4_000_000
#: Files that are fetched at once, of a file system that allows it: each waits for an answer most of the time.
_AT_ONCE = 8

_URL = re.compile(r"(?:[A-Za-z][\w+.-]*::)*[A-Za-z][\w+.-]*://")
_GLOB = re.compile(r"[*?\[]")
#: What may sign a URL stands behind its path, up to the next link of a chain.
_QUERY = re.compile(r"(?<=[?#])(?:(?!::[\w+.-]+:)\S)+")
#: Who asks, up to the last ``@``: keys may hold a slash, and what is no port behind a colon is one.
_USER = re.compile(r"(?<=://)(?:[^\s/:]*:(?!:|\d{0,5}(?:[/?#\s]|$))(?:(?!::[\w+.-]+:)\S)*|[^\s/?#]+)(?=@)")
#: Most bytes of a name of a file here; file systems take 255, and what is made of a copy is named longer than it.
_MOST_NAME_BYTES = 100
#: What has to be installed for a protocol beside fsspec.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "hf": "huggingface_hub",
}


def is_remote(place: str | Path) -> bool:
    """Whether it is a URL, or a chain of them as fsspec has it.

    >>> [is_remote(place) for place in ("s3://b/a.json", "zip://a.json::s3://b/c.zip", "runs/a::b.json")]
    [True, True, False]
    """
    return isinstance(place, str) and _URL.match(place) is not None


def shown(url: str) -> str:
    """The URL without what opens it.

    >>> shown("https://jo:pw@files.org/a.json?X-Amz-Signature=1f")
    'https://***@files.org/a.json?***'
    """
    return _QUERY.sub("***", _nameless(url))


def _nameless(url: str) -> str:
    return masked(_USER.sub("***", url))


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file that lies elsewhere; it can be sent to another process.

    Attributes:
        path: in the file system; it may hold what opens it. ``url`` is shown.
        size_bytes: as the file system says; ``None`` where it cannot tell.
        place: what was asked for, where that is a directory of this file: the file's path begins with it.
    """

    filesystem: Any = field(repr=False)
    path: str = field(repr=False)
    url: str
    size_bytes: int | None = None
    place: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Its last part, as a file here may be called."""
        return _safe(_bare(self.path).rstrip("/").rpartition("/")[2])

    @property
    def identity(self) -> str:
        """What tells it apart from all others; not to be shown, as what is masked in a URL may do so."""
        return f"{self.url}\n{_USER.sub('***', self.path)}"

    def stamp(self) -> str:
        """What changes when the file does."""
        return str(_asked(self.url, lambda: self.filesystem.ukey(self.path)))


@dataclass(frozen=True, slots=True)
class Copies:
    """Places, those that lie elsewhere as copies that are here for a while.

    Attributes:
        paths: in the order of the places; local ones as they were given.
        urls: of the copies, to be shown.
    """

    paths: tuple[Path, ...]
    urls: dict[Path, str]

    def beside(self) -> Path | None:
        """Where documents go that were to lie beside the first place, if that is a copy: there they would be lost."""
        return Path() if self.paths and self.paths[0] in self.urls else None

    def told(self, report: "Report", path: Path | None = None) -> "Report":
        """The report on ``path``, or on all, under the URL of that, or of the first, where it is a copy."""
        first = path or self.paths[0]
        url = self.urls.get(first)
        is_named = url is not None and report.run.name == first.name
        return revise(report, run=revise(report.run, name=url)) if is_named else report

    def words(self, text: str) -> str:
        """A sentence with URLs where it names copies."""
        for path, url in self.urls.items():
            text = text.replace(str(path), url)
        return text


@contextmanager
def fetched(places: Sequence[str | Path | RemoteFile]) -> Iterator[Copies]:
    """Copies of what lies elsewhere, for as long as the context lasts; errors within it name URLs, not copies.

    A URL names a file, a directory, all of which is fetched, or with ``*`` the files that match.

    Raises:
        UsageError: fsspec, or what it needs for a protocol, is not installed.
        UnreadableInputError: it cannot be reached, is not there, or is too large for the disk or at all.
    """
    if not any(isinstance(place, RemoteFile) or is_remote(place) for place in places):
        yield Copies(tuple(Path(str(place)) for place in places), {})
        return
    with tempfile.TemporaryDirectory(prefix="profilerkit-", ignore_cleanup_errors=True) as scratch:
        paths: list[Path] = []
        urls: dict[Path, str] = {}
        for number, place in enumerate(places):
            if isinstance(place, RemoteFile) or is_remote(place):
                paths.append(_fetch(place if isinstance(place, RemoteFile) else str(place), Path(scratch, str(number))))
                urls[paths[-1]] = place.url if isinstance(place, RemoteFile) else shown(str(place)).rstrip("/")
            else:
                paths.append(Path(place))
        copies = Copies(tuple(paths), urls)
        try:
            yield copies
        except ProfilerkitError as error:
            error.what, error.cause, error.hint = map(copies.words, (error.what, error.cause, error.hint))
            raise


def listed(url: str) -> list[RemoteFile]:
    """Return the files that a URL names: itself, those below a directory, or those that match, sorted."""
    told = shown(url)
    filesystem, path = _asked(url, lambda: _open(url))
    found, place = _asked(url, lambda: _found(url, filesystem, path))
    files = {name: about for name, about in found.items() if about.get("type") != "directory"}
    if not files:
        raise UnreadableInputError(f"{told} holds no file", cause="nothing matches", hint="check the spelling")
    if len(files) > _MOST_FILES:
        raise UnreadableInputError(
            f"{told} holds too many files", cause=f"{len(files):,} files", hint="name a directory with fewer files"
        )
    if list(files) == [path]:
        return [RemoteFile(filesystem, path, told, _size(files[path]))]
    return [RemoteFile(filesystem, name, _beside(told, name), _size(files[name]), place) for name in sorted(files)]


def _found(url: str, filesystem: Any, path: str) -> tuple[dict[str, Any], str]:
    """What file systems say of the files of a path, and the path again where it is a directory.

    A name may look like a pattern. Over HTTP anything is a file, and whether it is a page that lists others is told by
    reading all of it, so that is asked only of what ends in a slash.
    """
    bare = _bare(path)
    try:
        about = _asked(url, lambda: filesystem.info(path))
    except UnreadableInputError:
        if not _GLOB.search(bare):
            raise
        return dict(filesystem.glob(path, detail=True)), ""
    if about.get("type") == "directory" or (bare.endswith("/") and filesystem.isdir(path)):
        below = filesystem.find(path, detail=True)
        return {name: said for name, said in below.items() if not _bare(name).endswith("/")}, bare.rstrip("/") + "/"
    return {path: about}, ""


def _beside(told: str, name: str) -> str:
    """The URL of another file of the file system that ``told`` is in.

    >>> _beside("zip://*.json::s3://b/c.zip", "x/a.json")
    'zip://x/a.json::s3://b/c.zip'
    """
    if "://" in name:
        return shown(name)
    protocol, _, rest = told.partition("://")
    _, chained, outer = rest.partition("::")
    return _nameless(f"{protocol}://{name.lstrip('/')}{chained}{outer}")


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UsageError(
            f"{shown(url)} is remote", cause="fsspec is not installed", hint="pip install fsspec"
        ) from error
    filesystem, path = url_to_fs(url)
    return filesystem, path


def _asked(url: str, question: Callable[[], Any]) -> Any:
    """What a file system answers. Those of other packages raise errors of their own, of any kind."""
    try:
        return question()
    except ProfilerkitError:
        raise
    except ImportError as error:
        needed = [_PACKAGES[link] for link in re.findall(r"[\w+.-]+(?=://|::)", url) if link in _PACKAGES]
        raise UsageError(
            f"{shown(url)} needs a package that is not installed",
            cause=shown(str(error)),
            hint=f"pip install {' '.join(needed)}" if needed else "install what the cause names",
        ) from error
    except FileNotFoundError as error:
        raise UnreadableInputError(
            f"{shown(url)} does not exist", cause="no such file", hint="check the spelling"
        ) from error
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise UnreadableInputError(
            f"{shown(url)} cannot be read",
            cause=shown(f"{type(error).__name__}: {said}" if said else type(error).__name__),
            hint="check the URL, the network, and the credentials in the environment",
        ) from error


def _fetch(place: str | RemoteFile, room: Path) -> Path:
    files = [place] if isinstance(place, RemoteFile) else listed(place)
    is_one = isinstance(place, RemoteFile) or (len(files) == 1 and files[0].url == shown(place))
    whole = room / (files[0].name if is_one else _stem(str(place)))
    targets = [whole if is_one else whole / _inside(file) for file in files]
    if len(set(targets)) < len(targets):  # of one name in several directories
        targets = [whole / str(number) / file.name for number, file in enumerate(files)]
    room.mkdir()
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    known = [file.size_bytes for file in files if file.size_bytes is not None]
    whose = files[0].url if is_one else shown(str(place))
    if sum(known) > _usable_bytes(room):
        raise _too_large(whose, sum(known), _usable_bytes(room))
    logger.info("fetching %s", whose if is_one else f"{len(files):,} files of {whose}")
    # Only file systems that are made for it are asked from several threads.
    threads = _AT_ONCE if getattr(files[0].filesystem, "async_impl", False) else 1
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(_copy, files, targets))
    return whole


def _copy(file: RemoteFile, target: Path) -> None:
    """Write one file. What a file system says of its size is not relied on."""

    def run() -> None:
        size = 0
        with file.filesystem.open(file.path, "rb") as source, target.open("wb") as copy:
            while data := source.read(_CHUNK_BYTES):
                size += len(data)
                most = min(MOST_FILE_BYTES, _usable_bytes(target.parent) + size)
                if size >= most:
                    raise _too_large(file.url, size, most)
                copy.write(data)

    _asked(file.url, run)


def _usable_bytes(room: Path) -> int:
    usage = shutil.disk_usage(room)
    return max(int(usage.free - _LEFT_FREE_RATIO * usage.total), 0)


def _too_large(url: str, size: int, most: int) -> UnreadableInputError:
    return UnreadableInputError(
        f"{url} is too large to fetch",
        cause=f"it has {format_bytes(size)} or more; {tempfile.gettempdir()} takes {format_bytes(most)}",
        hint="set TMPDIR to a larger disk, or run profilerkit map on the storage host",
    )


def _size(info: Any) -> int | None:
    size = info.get("size") if isinstance(info, dict) else None
    return size if isinstance(size, int) and size >= 0 else None


def _stem(url: str) -> str:
    first = url.partition("::")[0] if "://" in url.partition("::")[0] else url.rpartition("::")[2]
    parts = [part for part in _bare(first).partition("://")[2].split("/") if part]
    return next((_safe(part) for part in reversed(parts) if not _GLOB.search(part)), "files")


def _bare(path: str) -> str:
    """The path without what opens it; only over HTTP ``?`` and ``#`` are no part of a name.

    >>> _bare("https://jo:pw@files.org/a.json?sig=1f"), _bare("run?1/a.json")
    ('https://***@files.org/a.json', 'run?1/a.json')
    """
    known = _USER.sub("***", path)
    return re.split(r"[?#]", known, maxsplit=1)[0] if re.match(r"https?://", known) else known


def _inside(file: RemoteFile) -> Path:
    """Where a copy lies below the directory that was asked for, without a step up."""
    below = _bare(file.path).removeprefix(file.place) if file.place else file.name
    return Path(*(_safe(part) for part in below.split("/") if part))


def _safe(part: str) -> str:
    """A name of a file that is nothing but one; of a long one both ends."""
    data = part.replace("\0", "").encode("utf-8", "replace")
    if len(data) > _MOST_NAME_BYTES:
        data = data[: _MOST_NAME_BYTES // 2] + data[-_MOST_NAME_BYTES // 2 :]
    name = data.decode("utf-8", "ignore")
    return "file" if name in ("", ".", "..") else name
