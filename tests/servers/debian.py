"""Install Debian's packages, or unpack them into a folder without touching the system."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.errors import NotHere

TIMEOUT = 900
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}

# dpkg knows one installation at a time; databases are searched for in parallel, browsers by several
# processes.
_installing = threading.Lock()
DPKG = "/var/lib/dpkg"


def which(program: str) -> str | None:
    """Find a program on the PATH, or among those of the administrator."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def require_root_on_debian() -> None:
    """Refuse to install anything on other systems."""
    if distribution() != "debian":
        raise NotHere("packages are installed on Debian only")
    if os.geteuid() != 0:
        raise NotHere("packages are installed as root only")


def distribution() -> str:
    """Name the Linux distribution; empty where there is none."""
    try:
        return platform.freedesktop_os_release().get("ID", "")
    except OSError:
        return ""


def install(*packages: str, program: str | None = None) -> None:
    """Install packages, without starting the services that come with them.

    Args:
        program: what they bring; nothing is done if another process has just installed it.
    """
    require_root_on_debian()
    with _installing, alone(), services_stay_down():
        if program is not None and which(program) is not None:
            return
        run("apt-get", "-qq", "update")
        run(
            *("apt-get", "-qq", "install", "--yes", "--no-install-recommends"),
            # Without it apt would remove another vendor's server that is in the way.
            *("--no-remove", "-o", "DPkg::Lock::Timeout=300", *packages),
        )


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process of the tests installs anything."""
    folder = os.open(DPKG, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def services_stay_down() -> Iterator[None]:
    """Keep Debian from starting what it installs: the port may be taken, and we start our own."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def unpack_from_sid(*packages: str, folder: Path) -> None:
    """Unpack packages of the unstable suite, with all that they depend on, into a folder."""
    require_root_on_debian()
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unpacked = Path(scratch, "unpacked")
        unpacked.mkdir()
        for archive in download_from_sid(*packages, folder=Path(scratch)):
            run("dpkg", "-x", str(archive), str(unpacked))
        # Renamed at once, when complete; another run may have been faster.
        if not folder.exists():
            unpacked.rename(folder)


def unpacked_libraries(root: Path) -> Path:
    """Return the folder of the libraries that were unpacked with a program."""
    found = next((root / "usr" / "lib").glob("*-linux-gnu*"), None)
    if found is None:
        raise NotHere(f"{root.name} in .servers/ is not complete: remove that folder")
    return found


def unpacked_program(root: Path, name: str) -> tuple[str, ...]:
    """Return the command that runs an unpacked program with the libraries beside it."""
    libraries = unpacked_libraries(root)
    loader = next((root / "usr").glob("lib*/ld-linux*.so.*"))
    path = f"{libraries}:{libraries / 'private'}"
    return (str(loader), "--library-path", path, str(root / "usr" / "sbin" / name))


def find(program: str, *packages: str) -> str:
    """Find a program, or install the packages that bring it; raise NotHere without it."""
    if which(program) is None:
        install(*packages, program=program)
    found = which(program)
    if found is None:
        raise NotHere(f"{' '.join(packages)} did not bring {program}")
    return found


def download_from_sid(*packages: str, folder: Path) -> list[Path]:
    """Download packages and what they depend on from the first mirror that has the suite."""
    reasons = ["apt knows no mirror"]
    for mirror in mirrors():
        try:
            source = f"deb {signed_by()} {mirror} sid main\n"
            return download(*packages, folder=folder, source=source)
        except NotHere as missing:
            reasons.append(str(missing))
    raise NotHere(reasons[-1])


def download(*packages: str, folder: Path, source: str) -> list[Path]:
    """Download with an apt state of its own, in which nothing is installed yet."""
    (folder / "sources.list").write_text(source, encoding="utf-8")
    apt = ("apt-get", "-qq", *own_state(folder))
    run(*apt, "update")
    run(*apt, "install", "--download-only", "--yes", "--no-install-recommends", *packages)
    return sorted((folder / "archives").glob("*.deb"))


def own_state(folder: Path) -> Iterator[str]:
    """Give apt's options that keep it away from the system's state."""
    for part in ("lists", "archives"):
        (folder / part / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Cache": folder,
        "Dir::Cache::archives": folder / "archives",
        # A mirror may lag behind; what it holds is signed all the same.
        "Acquire::Check-Valid-Until": "false",
        # apt's own user may not read the folder.
        "APT::Sandbox::User": "root",
    }
    for name, value in options.items():
        yield from ("-o", f"{name}={value}")


def mirrors() -> list[str]:
    """List where this machine has its packages from."""
    listed = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    return list(dict.fromkeys(listed.split()))


def signed_by() -> str:
    """Name the keyring that this machine trusts for Debian."""
    files = run("dpkg", "-L", "debian-archive-keyring").split()
    rings = [file for file in files if Path(file).stem == "debian-archive-keyring"]
    keyring = next((file for file in rings if Path(file).suffix in (".gpg", ".pgp")), None)
    return f"[signed-by={keyring}]" if keyring else ""


def run(*command: str) -> str:
    """Run a program of the system; if it fails, its last line of output is the reason."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **QUIET},
            timeout=TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or error.stdout).strip().rpartition("\n")[2]
        raise NotHere(f"{command[0]} failed: {last}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(str(error)) from error
    return done.stdout
