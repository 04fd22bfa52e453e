"""SQLite: a named lock is a locked file beside the database.

A row would outlive a killed process; the operating system frees the lock of a file (flock)
with its last handle. The file's text tells who has it. Whoever gives the lock back removes
the file; a file that a killed process left is locked again by the next holder.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import socket
import stat
import tempfile
import time
import weakref
from contextlib import closing, suppress
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Pool, StaticPool

from ..errors import UnsupportedDatabase
from .connections import call_for, leave_to_parent_after_fork
from .named_locks import Deadline, HeldLock, Holder, NamedLocks, digest, lock_lost, slug

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_READABLE, _HASHED = 40, 32

#: Seconds between two attempts of a waiter.
_AGAIN = 0.05

#: Whoever asks who has the lock keeps others from taking it for a moment: seconds between
#: two attempts, and how many attempts.
_LOOK_LASTS, _LOOKS = 0.002, 500

#: For so many seconds after a look that found the file, the lock counts as sure.
_SURE_FOR = 0.05

_ANYBODY_WHO_MAY_WRITE = 0o666

#: How a full disk refuses a write, or a quota.
_NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}

#: Follow no link, and wait for no writer of a pipe. Windows has neither flag, and no flock().
_NO_LINK_NO_PIPE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

#: How open() refuses a link (FreeBSD and NetBSD have codes of their own), a socket, a folder.
_NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, getattr(errno, "EFTYPE", -1)}


class SQLiteNamedLocks(NamedLocks):
    """Locks of one database file, by ``flock`` on files beside it."""

    def acquire(self, engine: Engine, name: str, deadline: Deadline) -> HeldLock | None:
        database = _database(engine)
        path = _path(database, name)
        while (file := _LockFile.taken(path)) is None:
            if deadline.passed:
                return None
            time.sleep(deadline.left(_AGAIN))
        try:
            file.sign(mode=_mode_of(database))
        except BaseException:
            file.give_back()
            raise
        return _HeldByFile(file, name)

    def holder(self, connection: Connection, name: str) -> Holder | None:
        database = file_of(connection) or memory_path(connection.engine.pool)
        return _holder(_path(database, name))

    def holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        return _holder(_path(_database(engine), name))


class _HeldByFile(HeldLock):
    """A lock that is ours as long as this process has its file open."""

    def __init__(self, file: _LockFile, name: str) -> None:
        self._file = file
        self._name = name
        self._seen_at = -math.inf
        weakref.finalize(self, file.give_back)

    @property
    def inherited(self) -> bool:
        return self._file.inherited

    @property
    def lost(self) -> bool:
        now = time.monotonic()
        if not self._file.ours:
            return True
        self._seen_at = now
        return False

    @property
    def sure(self) -> bool:
        # Each turn of a worker asks this, and its claim then asks `lost`: one look does for both.
        return time.monotonic() - self._seen_at < _SURE_FOR or not self.lost

    def check(self) -> None:
        if self.lost:
            raise lock_lost(self._name)

    def release(self) -> None:
        if not self._file.give_back():
            raise lock_lost(self._name)


class _LockFile:
    """An open file that we have locked."""

    inherited = False

    def __init__(self, path: str, number: int) -> None:
        self._path = path
        self._number: int | None = number
        self._identity = _identity(os.fstat(number))
        leave_to_parent_after_fork(self)

    @classmethod
    def taken(cls, path: str) -> _LockFile | None:
        """Open and lock a file; None if somebody else has locked it."""
        for _ in range(_LOOKS):
            number = _opened(path, os.O_RDWR | os.O_CREAT)
            if _locked(number, exclusively=True):
                file = cls(path, number)
                if file.ours:
                    return file
                file.give_back()  # its holder removed the file after we had opened it
                continue
            held = not _locked(number, exclusively=False)
            os.close(number)
            if held:
                return None
            time.sleep(_LOOK_LASTS)
        return None

    def sign(self, *, mode: int | None) -> None:
        """Write into the file who has it."""
        number = self._number
        assert number is not None
        if mode is not None and os.fstat(number).st_uid == os.geteuid():
            os.fchmod(number, mode)
        os.ftruncate(number, 0)
        try:
            os.pwrite(number, f"{os.getpid()}\n{socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # the lock is held, and only nobody can tell by whom
                raise

    @property
    def ours(self) -> bool:
        """Whether the file is open, and still the file that others find under its path."""
        if self._number is None:
            return False
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return _identity(found) == self._identity

    def give_back(self) -> bool:
        """Remove and close the file; tell whether it was ours."""
        ours = self.ours
        number, self._number = self._number, None
        if ours:
            # Removed before it is closed, while nobody else can have locked it. Where we are
            # not allowed to remove it, the next holder locks it again.
            with suppress(OSError):
                os.unlink(self._path)
        if number is not None:
            os.close(number)
        return ours

    def leave_to_parent(self) -> None:
        """Close the file in a forked child: the lock ends with the parent's handle."""
        self.inherited = True
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


def _identity(found: os.stat_result) -> tuple[int, int]:
    """Return what tells a file from all others, also after it was renamed."""
    return found.st_dev, found.st_ino


def _opened(path: str, flags: int) -> int:
    """Open a lock file; never a link, a pipe or a device, nor a file with a second name.

    Where others may write beside the database, they could have planted it: we would truncate
    a file of our own user, and change its mode.

    Raises:
        UnsupportedDatabase: it is no lock file, or this user may not open it.
    """
    try:
        number = os.open(path, flags | _NO_LINK_NO_PIPE, _ANYBODY_WHO_MAY_WRITE)
    except PermissionError as error:
        raise UnsupportedDatabase(
            f"this user may not open the lock file {path}: give every user of the database the "
            "right to write to its folder and to the lock files there. If none of these users "
            "has made the file, remove it"
        ) from error
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise
        raise _planted(path) from error
    found = os.fstat(number)
    # A file that its holder has removed meanwhile has no name any more.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(number)
        raise _planted(path)
    return number


def _planted(path: str) -> UnsupportedDatabase:
    return UnsupportedDatabase(
        f"{path} is no lock file: it is a link, or no plain file, or has a second name. It was not "
        "opened, since it may lead to a file of somebody else. Remove it, and see who may write "
        "into the database's folder"
    )


def _locked(number: int, *, exclusively: bool) -> bool:
    if fcntl is None:
        raise UnsupportedDatabase(
            "Named locks on SQLite need flock(), which this platform's Python does not have "
            "(the module fcntl). Use a database server for them, or run on Linux or macOS."
        )
    try:
        fcntl.flock(number, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: str) -> Holder | None:
    try:
        number = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared: so two processes that ask do not take each other for the holder.
        return None if _locked(number, exclusively=False) else _signer(number)
    finally:
        os.close(number)


def _signer(number: int) -> Holder:
    process, host, *_ = [*os.pread(number, 1024, 0).decode(errors="replace").split("\n"), "", ""]
    return Holder(process=int(process) if process.isdecimal() else None, host=host or None)


# -- where the files are ------------------------------------------------


def _path(database: str, name: str) -> str:
    return f"{database}.{slug(name, _READABLE) or 'lock'}-{digest(name).hex()[:_HASHED]}.lock"


def _database(engine: Engine) -> str:
    """Return the path of an engine's database; see memory_path() for one in memory."""
    named = engine.url.database or ":memory:"
    if named == ":memory:" or named.startswith("file:"):
        return _file(call_for(engine, lambda: _asked(engine)), engine.pool)
    # Without a connection: a session may have the pool's only one.
    return os.path.realpath(named)


def _asked(engine: Engine) -> str:
    """Ask a connection of an engine for its file.

    Not by SQLAlchemy's Connection: in memory, sessions may share one connection, and it
    would roll their transaction back at its end.
    """
    if isinstance(engine.pool, StaticPool):
        return _main(engine.pool.connection.dbapi_connection)
    with closing(engine.raw_connection()) as connection:
        return _main(connection)


def _main(connection: Any) -> str:
    with closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA database_list")
        return next(file or "" for _, name, file in cursor.fetchall() if name == "main")


def _file(path: str, pool: Pool) -> str:
    return os.path.realpath(path) if path else memory_path(pool)


def file_of(connection: Connection) -> str | None:
    """Return the path of a connection's database; None: it is in memory."""
    # Not the driver's own connection: behind an async adapter it would have to be awaited.
    path = _main(connection.connection.dbapi_connection)
    return os.path.realpath(path) if path else None


def _mode_of(database: str) -> int | None:
    try:
        return os.stat(database).st_mode & _ANYBODY_WHO_MAY_WRITE
    except FileNotFoundError:  # in memory, or not created yet by a first connection
        return None


_tokens: WeakKeyDictionary[Pool, str] = WeakKeyDictionary()


def memory_path(pool: Pool) -> str:
    """Return a path for the locks of a database in memory, which belongs to process and pool."""
    token = _tokens.setdefault(pool, secrets.token_hex(8))
    return os.path.join(tempfile.gettempdir(), f"sa_jobqueue-{os.getpid()}-{token}")
