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
_SAY_NOTHING = {"", "root", "localhost", "user", "linux", "host", "ubuntu", "debian"}
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
    names = {host: "<host>", host.partition(".")[0]: "<host>", _user(): "<user>", _real_user(): "<user>"}
    found |= {name: stands for name, stands in names.items() if name.lower() not in _SAY_NOTHING | _OURS}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def without_private_words(value: Any, words: Mapping[str, str]) -> Any:
    """JSON values like `value`, without `words`, other paths and addresses, in keys and texts alike."""
    if isinstance(value, str):
        for word, stands in words.items():
            value = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", stands, value)
        return _ADDRESS.sub("<address>", _PATH.sub("<path>", value))
    if isinstance(value, Mapping):
        return {without_private_words(key, words): without_private_words(each, words) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_private_words(each, words) for each in value]
    return value


def _real_user() -> str:
    """Who became root by sudo."""
    return os.environ.get("SUDO_USER", "")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return ""
