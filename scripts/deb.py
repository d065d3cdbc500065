# SPDX-License-Identifier: Apache-2.0
"""Builds a Debian package of the plugin, the command, units and dashboards into dist/, for the Debian of this machine.

Its files are a virtual environment in /usr/lib/paralet: paralet's wheel beside the Python packages that .venv has for
the base and the path service, which are those of requirements.lock. Debian has too old versions of some of them, or
none. With a virtual environment nothing is compiled or fetched where it is installed, child processes find their
modules, and no other program does. The interpreter is Debian's. build/deb/extra lists what only the path
service needs (scripts/image.sh).

usage: python scripts/deb.py
"""

import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "deb"
TREE = BUILD / "tree"
GIT = ("git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT))
HOME = Path("usr/lib/paralet")
EXTRAS = ("service",)


def main() -> None:
    """Build the package, and print its name."""
    shutil.rmtree(BUILD, ignore_errors=True)
    os.umask(0o022)
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()  # no file is newer, so that a second build gives the same bytes
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = environment(wheel())
    requirements = [
        *project["dependencies"],
        *(each for extra in EXTRAS for each in project["optional-dependencies"][extra]),
    ]
    base = {each.name for each in with_their_own(project["dependencies"])}
    extra: set[str] = set()
    for found in with_their_own(requirements):
        names = copy_package(found, packages)
        if found.name not in base:
            extra |= names
    (BUILD / "extra").write_text("".join(f"/{packages.relative_to(TREE)}/{name}\n" for name in sorted(extra)))
    beside()
    version = debian_version(project["version"])
    changelog(version)
    control(version)
    name = ROOT / "dist" / f"paralet_{version}_{architecture()}.deb"
    name.parent.mkdir(exist_ok=True)
    for older in name.parent.glob("paralet_*.deb"):
        older.unlink()
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", TREE, name)
    print(f"deb: {name.relative_to(ROOT)}, {name.stat().st_size / 1e6:.0f} MB")


def wheel() -> Path:
    """Paralet's wheel, without the libraries that Debian has."""
    folder = BUILD / "wheel"
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


def environment(own: Path) -> Path:
    """A virtual environment with a wheel, as `python3 -m venv` makes it, at its place in the package.

    Returns its folder of packages.
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = TREE / HOME
    packages = home / "lib" / python / "site-packages"
    packages.mkdir(parents=True)
    with zipfile.ZipFile(own) as files:
        files.extractall(packages)
    # Not what others have built: some libraries have been changed since they were linked, and strip breaks these.
    run("strip", "--strip-unneeded", *packages.glob("**/*.so"), *packages.glob("**/*.so.*"), *packages.glob("*/bin/*"))
    for program in packages.glob("*/bin/paralet-*"):
        program.chmod(0o755)
    settings = {"home": "/usr/bin", "include-system-site-packages": "false", "executable": f"/usr/bin/{python}"}
    (home / "pyvenv.cfg").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    link(HOME / "bin" / "python3", Path("usr/bin") / python)
    command = home / "bin" / "paralet"
    command.write_text(f"#!/{HOME}/bin/python3 -I\nfrom testbed.__main__ import main\n\nmain()\n")
    command.chmod(0o755)
    return packages


def with_their_own(requirements: list[str]) -> Iterator[Distribution]:
    """The packages that these requirements name, and those that they need."""
    seen: set[tuple[str, str]] = set()
    given: set[str] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        requirement = left.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            found = distribution(requirement.name)
            if requirement.name not in given:
                given.add(requirement.name)
                yield found
            more = map(Requirement, found.requires or ())
            left += [each for each in more if each.marker is None or each.marker.evaluate({"extra": extra})]


def copy_package(package: Distribution, to: Path) -> set[str]:
    """Copy the files of an installed package, without its programs, its tests and what Python has compiled.

    Returns the names of the files and folders that are new in the folder `to`.
    """
    names = set()
    for file in package.files or ():
        parts = file.parts
        if ".." in parts or "__pycache__" in parts or "tests" in parts:
            continue
        target = to.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(package.locate_file(file)), target)
        names.add(parts[0])
    return names


def beside() -> None:
    """Put what is not Python into its places: the command, the plugins, units, dashboards, documentation."""
    files = ROOT / "deploy"
    (site,) = (TREE / HOME).glob("lib/*/site-packages")
    link(Path("usr/bin/paralet"), HOME / "bin" / "paralet")
    triplet = output("gcc", "-print-multiarch")
    for name in ("libnccl-net-paralet.so", "libnccl-profiler-paralet.so"):
        link(Path("usr/lib", triplet, name), site.relative_to(TREE) / "nccl_net_plugin" / "lib" / name)
    for unit in (files / "systemd").glob("*.service"):
        place(unit, Path("usr/lib/systemd/system") / unit.name)
    for file in (ROOT / "dashboards").iterdir():
        if not file.name.endswith(".test.yml"):
            place(file, Path("usr/share/paralet/dashboards") / file.name)
    (TREE / "etc" / "paralet").mkdir(parents=True)
    documentation = Path("usr/share/doc/paralet")
    place(files / "debian" / "logrotate", Path("etc/logrotate.d/paralet"))
    for job in (files / "jobs").rglob("*.*"):
        place(job, documentation / "examples" / job.relative_to(files / "jobs"))
    place(files / "debian" / "copyright", documentation / "copyright")
    compressed((ROOT / "CHANGELOG.md").read_bytes(), documentation / "CHANGELOG.md.gz")
    compressed((files / "debian" / "paralet.1").read_bytes(), Path("usr/share/man/man1/paralet.1.gz"))
    place(files / "debian" / "lintian-overrides", Path("usr/share/lintian/overrides/paralet"))


def changelog(version: str) -> None:
    """Write what Debian's tools read of a package's versions; people read CHANGELOG.md.gz beside it."""
    when = output("date", "-R", f"--date=@{commit_time()}")
    entry = f"paralet ({version}) unstable; urgency=medium\n\n  * CHANGELOG.md has the changes."
    text = f"{entry}\n\n -- {maintainer()}  {when}\n"
    compressed(text.encode(), Path("usr/share/doc/paralet/changelog.gz"))


def maintainer() -> str:
    """Who makes the package: DEBFULLNAME and DEBEMAIL, as Debian's own tools take it."""
    name, address = os.environ.get("DEBFULLNAME", "paralet"), os.environ.get("DEBEMAIL", "paralet@localhost")
    return f"{name} <{address}>"


def control(version: str) -> None:
    """Write the control files of the package."""
    folder = TREE / "DEBIAN"
    every = [file for file in sorted(TREE.rglob("*")) if file.is_file() and not file.is_symlink()]
    folder.mkdir()
    sums = (f"{hashlib.md5(file.read_bytes()).hexdigest()}  {file.relative_to(TREE)}\n" for file in every)
    (folder / "md5sums").write_text("".join(sums))
    (folder / "conffiles").write_text("/etc/logrotate.d/paralet\n")
    major, minor = sys.version_info[:2]
    values = {
        "VERSION": version,
        "MAINTAINER": maintainer(),
        "ARCHITECTURE": architecture(),
        "SIZE": sum(file.stat().st_size for file in every) // 1024,
        "GLIBC": str(os.confstr("CS_GNU_LIBC_VERSION")).removeprefix("glibc "),
        "PYTHON": f"{major}.{minor}~",
        "NEXT_PYTHON": f"{major}.{minor + 1}~",
    }
    text = (ROOT / "deploy" / "debian" / "control").read_text()
    (folder / "control").write_text(re.sub(r"@(\w+)@", lambda name: str(values[name[1]]), text))
    for name in ("postinst", "prerm", "postrm"):
        shutil.copyfile(ROOT / "deploy" / "debian" / name, folder / name)
        (folder / name).chmod(0o755)


def debian_version(version: str) -> str:
    """That of the release, and beside its tag the commit's time and hash, so that later builds are newer.

    The end names the system, as Debian's backports do: that of the next Debian is newer, and an upgrade takes it.
    """
    if f"v{version}" not in output(*GIT, "tag", "--points-at", "HEAD").split():
        version += output(*GIT, "log", "-1", "--format=+git%cd.%h", "--date=format:%Y%m%d%H%M", "--abbrev=12")
    system = platform.freedesktop_os_release()
    release = system.get("VERSION_ID", system.get("VERSION_CODENAME", ""))  # testing has a name and no number
    return f"{version}~{'deb' if system['ID'] == 'debian' else system['ID']}{release}"


def commit_time() -> str:
    """Seconds since 1970."""
    return output(*GIT, "log", "-1", "--format=%ct")


def architecture() -> str:
    """Debian's name of this machine's."""
    return output("dpkg", "--print-architecture")


def place(file: Path, to: Path) -> None:
    """Copy a file to its path in the package."""
    (TREE / to).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, TREE / to)


def compressed(data: bytes, to: Path) -> None:
    """Write data with gzip to its path in the package."""
    (TREE / to).parent.mkdir(parents=True, exist_ok=True)
    (TREE / to).write_bytes(gzip.compress(data, 9, mtime=0))


def link(name: Path, to: Path) -> None:
    """A relative link in the package."""
    (TREE / name).parent.mkdir(parents=True, exist_ok=True)
    (TREE / name).symlink_to(os.path.relpath(to, name.parent))


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(*command: str | Path) -> None:
    """Run a command; if it fails, what it said ends this program."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\ndeb: {' '.join(map(str, command))} failed")


if __name__ == "__main__":
    main()
