"""Installs this checkout, editable, into the environment of the interpreter that runs this file.

Usage: python runs/install.py EXTRAS [--uv PATH]        (runs/setup.sh calls it)

uv does it if --uv names one, with the settings that pip has on this machine, else pip. PyPI's torch for Linux includes
CUDA, some gigabytes that a machine without a GPU cannot use: there a CPU build is taken where one is offered, else the
size of the download is printed first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from configparser import Error as ConfigError
from configparser import RawConfigParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]

# What uv calls pip's settings, and what separates several values of one.
UV_NAMES = {
    "index-url": ("UV_INDEX_URL", " "),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "proxy": ("ALL_PROXY", ""),
    "cert": ("SSL_CERT_FILE", ""),
}

# From this version on, a dry run of pip reads metadata only; before, it downloads every wheel.
PIP_WITHOUT_DOWNLOADS = (24, 1)


class Planned(NamedTuple):
    """A package that an installation would download."""

    name: str
    version: str
    url: str


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of pip on this machine: of all users, of this user, of this environment, $PIP_CONFIG_FILE, $PIP_*.

    An environment that uv made has no pip that could be asked.
    """
    found = {}
    for file in pip_files(environ):
        parser = RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (ConfigError, UnicodeDecodeError, OSError) as error:
            print(f"warning: {file} is not read: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    for name, value in environ.items():
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE":
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return {name: value for name, value in found.items() if value.strip()}


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """The files that pip reads, the strongest last; $PIP_CONFIG_FILE replaces those of the user."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    home = Path(environ.get("HOME", "~")).expanduser()
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), Path("/Library/Application Support/pip/pip.conf")]
    if not (chosen and Path(chosen).exists()):
        files += [home / ".pip/pip.conf", config / "pip/pip.conf", home / "Library/Application Support/pip/pip.conf"]
    files.append(Path(sys.prefix) / "pip.conf")
    return [*files, Path(chosen)] if chosen else files


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which uv installs from where pip would install; variables of uv that are set stay."""
    added = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: the best version of all indexes
    for name, value in pip_settings(environ).items():
        if name in UV_NAMES:
            variable, separator = UV_NAMES[name]
            added[variable] = separator.join(value.split()) if separator else value
    return {**added, **environ}


def torch_requirement() -> str:
    """The line of setup.cfg about torch."""
    parser = RawConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = parser["options"]["install_requires"].split("\n")
    return next(line for line in lines if re.match(r"torch\b[^-]", line))


def has_gpu() -> bool:
    """True if NVIDIA's driver shows a card; the builds of torch on PyPI use no other cards on Linux."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or which("nvidia-smi") is not None


class Installer:
    """pip, or uv in the settings of pip."""

    def __init__(self, uv: str | None):
        self.uv = uv
        self.environ = uv_environment(os.environ) if uv else dict(os.environ)
        self.no_index = ["--no-index"] if uv and "no-index" in pip_settings(os.environ) else []

    def plan(self, requirement: str, backend: str | None = None) -> list[Planned]:
        """What installing a requirement would download; empty if that cannot be found out.

        Args:
            requirement: as in setup.cfg.
            backend: uv's --torch-backend.
        """
        if self.uv:
            options = ["--torch-backend", backend] if backend else []
            command = [self.uv, "pip", "compile", "--quiet", *self.no_index, "--python", sys.executable, *options]
            text = said([*command, "--format", "pylock.toml", "-"], self.environ, requirement)
            return list(locked(text))
        if pip_version() < PIP_WITHOUT_DOWNLOADS:
            return []
        text = said([*PIP, "install", "--quiet", "--dry-run", "--report", "-", requirement], self.environ)
        return list(reported(text))

    def install(self, extras: str) -> int:
        """Installs the checkout; the exit code."""
        target = ["--editable", f".[{extras}]"]
        if self.uv:
            # pip too: an environment without it sends `pip install` of its user somewhere else.
            command = [self.uv, "pip", "install", "--quiet", *self.no_index, "--python", sys.executable, *target, "pip"]
        else:  # errors only: of warnings there are hundreds where a package index is a folder
            command = [*PIP, "install", "-qq", "--disable-pip-version-check", *target]
        return subprocess.run(command, cwd=ROOT, env=self.environ, check=False).returncode


PIP = [sys.executable, "-m", "pip"]


def said(command: list[str], environ: Mapping[str, str], given: str = "") -> str:
    """What a command prints on standard output; nothing if it fails."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environ, check=False)
    return done.stdout if done.returncode == 0 else ""


def locked(text: str) -> Iterator[Planned]:
    """The packages of a file pylock.toml that uv resolved for one interpreter: one wheel each, or a source archive."""
    for package in tomllib.loads(text).get("packages", []):
        file = next(iter(package.get("wheels", [])), None) or package.get("sdist") or {}
        yield Planned(package["name"], package["version"], file.get("url") or file.get("path") or "")


def reported(text: str) -> Iterator[Planned]:
    """The packages of a report of pip."""
    for package in json.loads(text or "{}").get("install", []):
        about = package["metadata"]
        yield Planned(about["name"], about["version"], package["download_info"]["url"])


def pip_version() -> tuple[int, ...]:
    """The first two numbers of pip's version; (0, 0) without pip."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", version("pip"))[:2])
    except PackageNotFoundError:
        return (0, 0)


def size(package: Planned) -> int:
    """Bytes of a package's file; 0 if the server does not tell."""
    try:
        if package.url.startswith("file:"):
            return Path(unquote(urlsplit(package.url).path)).stat().st_size
        request = urllib.request.Request(package.url, method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError):
        return 0


def is_cpu_build(planned: list[Planned]) -> bool:
    """True if the torch among the packages has no CUDA."""
    return any(package.name == "torch" and package.version.endswith("+cpu") for package in planned)


def choose_torch(installer: Installer) -> str:
    """Makes the installer take a CPU build of torch where one is offered; returns the line to print.

    The configured indexes come first. uv also knows torch's own index, which may be out of reach.
    """
    requirement = torch_requirement()
    planned = installer.plan(requirement)
    if is_cpu_build(planned):
        return "no GPU found: a CPU build of torch will be installed"
    if installer.uv and not installer.no_index and is_cpu_build(installer.plan(requirement, backend="cpu")):
        installer.environ["UV_TORCH_BACKEND"] = "cpu"
        return "no GPU found: a CPU build of torch will be installed, from torch's own index"
    if not planned:
        return "no GPU found: unless a CPU build of torch is offered here, CUDA (some gigabytes) will be downloaded"
    return f"no GPU found, but no CPU build of torch is offered here: {download(planned)} will be downloaded"


def download(planned: list[Planned]) -> str:
    """One phrase on torch, its dependencies and their size."""
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size, planned))
    about = "at least " if 0 in sizes else ""
    torch = next(package for package in planned if package.name == "torch")
    return f"torch {torch.version} with CUDA, {len(planned)} packages, {about}{sum(sizes) / 1e9:.1f} GB,"


def main() -> int:
    """Installs; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", help="the extras of setup.cfg to install, such as minilm or test")
    parser.add_argument("--uv", help="the program uv")
    given = parser.parse_args()
    if not given.uv and pip_version() == (0, 0):
        print(
            f"error: {sys.prefix} has no pip, and uv is not on PATH; run {sys.executable} -m ensurepip", file=sys.stderr
        )
        return 1
    installer = Installer(given.uv)
    try:
        version("torch")
    except PackageNotFoundError:
        if sys.platform == "linux" and not has_gpu() and "UV_TORCH_BACKEND" not in os.environ:
            print(choose_torch(installer), file=sys.stderr)
    return installer.install(given.extras)


if __name__ == "__main__":
    sys.exit(main())
