"""SQLite: a named lock is a locked file beside the database.

A row would outlive a killed process; the operating system frees the lock of a file (flock)
with its last handle. The file's text tells who has it. Whoever gives the lock back removes
the file; a file that a killed process left is locked again by the next holder.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import tempfile
import time
import weakref
from contextlib import closing, suppress
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Pool, StaticPool

from ..errors import UnsupportedDatabase
from .connections import call_for, leave_to_parent_after_fork
from .named_locks import HeldLock, Holder, digest, slug

#: Whoever asks who has the lock keeps others from taking it for a moment: seconds between
#: two attempts, and how many attempts.
_LOOK_LASTS, _LOOKS = 0.002, 500

_ANYBODY_WHO_MAY_WRITE = 0o666

#: How a full disk refuses a write, or a quota.
_NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}

#: Follow no link, and wait for no writer of a pipe. Windows has neither flag, and no flock().
_NO_LINK_NO_PIPE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

#: How open() refuses a link (FreeBSD and NetBSD have codes of their own), a socket, a folder.
_NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, getattr(errno, "EFTYPE", -1)}


class LockFile(HeldLock):
    """A lock that is ours as long as this process has its file open."""

    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name)
        self._path, self._number = path, number
        self._end = weakref.finalize(self, _remove_and_close, path, number)
        self._is_inherited = False
        leave_to_parent_after_fork(self)

    @classmethod
    def taken(cls, name: str, path: str) -> LockFile | None:
        """Open and lock a file; None if somebody else has locked it."""
        for _ in range(_LOOKS):
            number = _opened(path, os.O_RDWR | os.O_CREAT)
            if _locked(number, exclusively=True):
                file = cls(name, path, number)
                if not file.lost:
                    return file
                file.give_back()  # its holder removed the file after we had opened it
                continue
            held = not _locked(number, exclusively=False)
            os.close(number)
            if held:
                return None
            time.sleep(_LOOK_LASTS)
        return None

    def sign(self, database: str) -> None:
        """Write into the file who has it; whoever may use the database may lock it."""
        number = self._number
        with suppress(FileNotFoundError):  # in memory, or not created yet by a first connection
            mode = os.stat(database).st_mode & _ANYBODY_WHO_MAY_WRITE
            if os.fstat(number).st_uid == os.geteuid():
                os.fchmod(number, mode)
        os.ftruncate(number, 0)
        try:
            os.pwrite(number, f"{os.getpid()}\n{socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # the lock is held, and only nobody can tell by whom
                raise

    @property
    def inherited(self) -> bool:
        return self._is_inherited

    @property
    def lost(self) -> bool:
        """Whether it is closed, or others find another file under its path."""
        return not (self._end.alive and _is_at(self._path, self._number))

    def is_held(self) -> bool:
        return not self.lost

    def give_back(self) -> bool:
        return bool(self._end())

    def leave_to_parent(self) -> None:
        """Close the file in a forked child: the lock ends with the parent's handle."""
        self._is_inherited = True
        if self._end.detach() is not None:
            os.close(self._number)


def _is_at(path: str, number: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.lstat(path), os.fstat(number))
    return False


def _remove_and_close(path: str, number: int) -> bool:
    """Give a locked file back; tell whether it was still under its path."""
    ours = _is_at(path, number)
    if ours:
        # Removed before it is closed, while nobody else can have locked it. Where we are
        # not allowed to remove it, the next holder locks it again.
        with suppress(OSError):
            os.unlink(path)
    os.close(number)
    return ours


def _opened(path: str, flags: int) -> int:
    """Open a lock file; never a link, a pipe or a device, nor a file with a second name.

    Where others may write beside the database, they could have planted it: we would truncate
    a file of our own user, and change its mode.

    Raises:
        UnsupportedDatabase: it is no lock file, or this user may not open it.
    """
    planted = UnsupportedDatabase(
        f"{path} is no lock file: it is a link, or no plain file, or has a second name. It was not "
        "opened, since it may lead to a file of somebody else. Remove it, and see who may write "
        "into the database's folder"
    )
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
        raise planted from error
    found = os.fstat(number)
    # A file that its holder has removed meanwhile has no name any more.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(number)
        raise planted
    return number


def _locked(number: int, *, exclusively: bool) -> bool:
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise UnsupportedDatabase(
            "Named locks on SQLite need flock(), which this platform's Python does not have "
            "(the module fcntl). Use a database server for them, or run on Linux or macOS."
        ) from error
    try:
        fcntl.flock(number, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder_of(path: str) -> Holder | None:
    """Tell who has locked a file; None: nobody."""
    try:
        number = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared: so two processes that ask do not take each other for the holder.
        if _locked(number, exclusively=False):
            return None
        text = os.pread(number, 1024, 0).decode(errors="replace")
    finally:
        os.close(number)
    process, host, *_ = [*text.split("\n"), "", ""]
    return Holder(process=int(process) if process.isdecimal() else None, host=host or None)


# -- where the files are ------------------------------------------------


def lock_path(database: str, name: str) -> str:
    """Return the path of a lock's file."""
    return f"{database}.{slug(name, 40) or 'lock'}-{digest(name).hex()[:32]}.lock"


def path_of(engine: Engine) -> str:
    """Return the path of an engine's database; see memory_path() for one in memory."""
    named = engine.url.database or ":memory:"
    if named != ":memory:" and not named.startswith("file:"):
        # Without a connection: a session may have the pool's only one.
        return os.path.realpath(named)
    return call_for(engine, lambda: _asked(engine)) or memory_path(engine.pool)


def _asked(engine: Engine) -> str | None:
    """Ask a connection of an engine for its file.

    Not by SQLAlchemy's Connection: in memory, sessions may share one connection, and it
    would roll their transaction back at its end.
    """
    if isinstance(engine.pool, StaticPool):
        return _main(engine.pool.connection.dbapi_connection)
    with closing(engine.raw_connection()) as connection:
        return _main(connection)


def _main(connection: Any) -> str | None:
    with closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA database_list")
        path = next(file for _, name, file in cursor.fetchall() if name == "main")
    return os.path.realpath(path) if path else None


def file_of(connection: Connection) -> str | None:
    """Return the path of a connection's database; None: it is in memory."""
    # Not the driver's own connection: behind an async adapter it would have to be awaited.
    return _main(connection.connection.dbapi_connection)


_tokens: WeakKeyDictionary[Pool, str] = WeakKeyDictionary()


def memory_path(pool: Pool) -> str:
    """Return a path for the locks of a database in memory, which belongs to process and pool."""
    token = _tokens.setdefault(pool, secrets.token_hex(8))
    return os.path.join(tempfile.gettempdir(), f"sa_jobqueue-{os.getpid()}-{token}")
