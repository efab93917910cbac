"""What is sent away says nothing of whose host it was made on."""

from __future__ import annotations

import getpass
import os
import socket
import tempfile

import pytest

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
