"""Takes out of values that are to be sent away what says whose host this is: names, paths, addresses."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PATH = re.compile(r"(?<![\w./<>])/(?!proc/|sys/|dev/)[\w.+@~-]+(?:/[\w.+@~-]+)+")
"""An absolute path of two parts or more, also behind `file:`; the kernel's own files say nothing of their host."""
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])"
)
"""IPv4, MAC, IPv6 written out."""
_ENDINGS = "csv|html|json|log|safetensors|toml|trace|txt|yaml"
"""What a file that is called like the host may end with: no domain of the internet does."""
_AROUND = {"<host>": ("", rf"(?:\.(?!(?:{_ENDINGS})(?![\w-]|\.\w))[\w-]+)*"), "<domain>": (r"(?:[\w-]+\.)*", "")}
"""What goes with a word: the domain that a host's name is in, the names of other hosts in a domain."""
_HOSTS, _RESOLVER = Path("/etc/hosts"), Path("/etc/resolv.conf")
"""What the host's other names and its domains are read from: nobody is asked by network."""
_SAY_NOTHING = {"", "root", "localhost", "user", "linux", "host", "ubuntu", "debian", "localhost.localdomain"}
"""Names that many hosts have."""
_OURS = {"sentinel", "kernel", "machine", "file", "slow", "fast", "stock", "static", "policy", "proof", "name", "torch"}
"""Words of what is sent, which could not be read without them."""


def private_words() -> dict[str, str]:
    """What must not be told -> what stands for it; folders first, the longest first."""
    folders = {
        os.path.expanduser("~"): "<home>",
        os.getcwd(): "<folder>",
        str(Path(__file__).resolve().parents[2]): "<installation>",
        sys.prefix: "<environment>",
        tempfile.gettempdir(): "<temporary>",
    }
    found = {path: stands for path, stands in folders.items() if path.count(os.sep) > 1 or path == "/root"}
    host = socket.gethostname()
    hosts = {host, host.partition(".")[0], *_other_names(host)}
    names = {_user(): "<user>", _real_user(): "<user>", **dict.fromkeys(_domains(hosts), "<domain>")}
    names |= dict.fromkeys(hosts, "<host>")
    found |= {name: stands for name, stands in names.items() if name.lower() not in _SAY_NOTHING | _OURS}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def without_private_words(value: Any, words: Mapping[str, str]) -> Any:
    """JSON values like `value`, without `words`, other paths and addresses, in keys and texts alike."""
    if isinstance(value, str):
        for word, stands in words.items():
            before, behind = _AROUND.get(stands, ("", ""))
            value = re.sub(rf"(?<!\w){before}{re.escape(word)}{behind}(?!\w)", stands, value)
        return _ADDRESS.sub("<address>", _PATH.sub("<path>", value))
    if isinstance(value, Mapping):
        return {without_private_words(key, words): without_private_words(each, words) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_private_words(each, words) for each in value]
    return value


def _other_names(host: str) -> set[str]:
    """What else the host's own file of names calls `host`, or what it is the first part of."""
    found: set[str] = set()
    for line in _lines(_HOSTS):
        names = line.partition("#")[0].split()[1:]
        if host in (name.partition(".")[0] for name in names) or host in names:
            found.update(names)
    return found


def _domains(hosts: set[str]) -> set[str]:
    """Those that the names in `hosts` end with, and those in which names are looked up; not `local` and the like."""
    found = {host.partition(".")[2] for host in hosts}
    for line in _lines(_RESOLVER):
        word, *domains = line.split() or [""]
        if word in ("search", "domain"):
            found.update(domain.strip(".") for domain in domains)
    return {domain for domain in found if "." in domain}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _real_user() -> str:
    """Who became root by sudo."""
    return os.environ.get("SUDO_USER", "")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return ""
