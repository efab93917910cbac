"""What is sent away says nothing of whose host it was made on."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from pathlib import Path

import pytest

from sentinel.system import private_words as module
from sentinel.system.private_words import private_words, without_private_words

WORDS = {"/home/ada/work": "<folder>", "/home/ada": "<home>", "babbage": "<host>", "ada": "<user>"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/home/ada/work/out.json is full", "<folder>/out.json is full"),
        ("cannot open /home/ada/.cache/x", "cannot open <home>/.cache/x"),
        ("babbage is busy, says ada", "<host> is busy, says <user>"),
        ("cannot read /var/lib/thing/file.bin", "cannot read <path>"),
        ("file:/mnt/secret/scratch has no room", "file:<path> has no room"),
        ("no route to 192.168.12.7:80", "no route to <address>:80"),
        ("from fe80:0:0:0:1:2:3:4", "from <address>"),
        ("card 00:1a:2b:3c:4d:5e", "card <address>"),
    ],
)
def test_names_paths_and_addresses_are_taken_out(said: str, expected: str) -> None:
    assert without_private_words(said, WORDS) == expected


@pytest.mark.parametrize(
    "said",
    [
        "adam is an optimizer",
        "needs /proc/sys/kernel/numa_balancing or /sys/kernel/mm/numa/demotion_enabled",
        "Linux 6.12.30-babbages-kernel",
        "2026-11-23T13:30:38Z",
        "glibc 2.36, torch 2.13.0+cpu",
        "read/write and GB/s",
        "https://pytorch.org/get-started/locally",
    ],
)
def test_what_says_nothing_of_a_host_stays(said: str) -> None:
    assert without_private_words(said, WORDS) == said


def test_names_and_texts_at_any_depth_are_looked_at_and_other_values_stay() -> None:
    value = {"ada": [1, None, True, {"at": ("babbage", 2.5)}]}
    assert without_private_words(value, WORDS) == {"<user>": [1, None, True, {"at": ["<host>", 2.5]}]}


def test_this_host_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "engine.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "lovelace")
    monkeypatch.setenv("HOME", "/home/lovelace")
    words = private_words()
    said = f"lovelace on engine.example.org, in {os.getcwd()}/x, {tempfile.gettempdir()}/y and /home/lovelace/z"
    told = without_private_words(said, words)
    assert "lovelace" not in told
    assert "engine" not in told
    assert os.getcwd() not in told


@pytest.fixture
def names_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, resolver = tmp_path / "hosts", tmp_path / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost\n10.1.1.1 engine.example.org engine mill-3 # of engine\n10.1.1.2 loom\n")
    resolver.write_text("nameserver 10.1.1.9\nsearch lab.difference.net local.\n")
    monkeypatch.setattr(module, "_HOSTS", hosts)
    monkeypatch.setattr(module, "_RESOLVER", resolver)
    monkeypatch.setattr(getpass, "getuser", lambda: "root")


@pytest.mark.usefixtures("names_of_hosts")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("engine is busy. engine", "<host> is busy. <host>"),
        ("engine.json, engine.analytical.csv and engine.logs.net", "<host>.json, <host>.csv and <host>"),
        ("no route to engine.analytical.net:80", "no route to <host>:80"),
        ("engine.log.analytical.net and engine.trace-eu.net, see engine.log.", "<host> and <host>, see <host>.log."),
        ("no route to mill-3.example.org", "no route to <domain>"),
        ("mill-3, and loom.example.org.", "<host>, and <domain>."),
        ("asked ns.lab.difference.net", "asked <domain>"),
        ("a local file, counterexample.org, loom", "a local file, counterexample.org, loom"),
    ],
)
def test_a_hosts_full_name_its_other_names_and_its_domains_are_private(
    said: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "engine")
    assert without_private_words(said, private_words()) == expected


@pytest.mark.usefixtures("names_of_hosts")
def test_the_domain_of_a_host_that_knows_its_full_name_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Loom.Jacquard.fr")
    assert without_private_words("Loom and peer.Jacquard.fr", private_words()) == "<host> and <domain>"


@pytest.mark.parametrize(("host", "user"), [("localhost", "root"), ("machine", "file"), ("Kernel", "slow")])
def test_a_name_that_is_a_word_of_ours_is_no_private_word(
    host: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of that name would be another one in what is sent, and nobody could read it."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(getpass, "getuser", lambda: user)
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert without_private_words({f"run as {user}": host}, private_words()) == {f"run as {user}": host}


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert "" not in private_words()
