"""What the session of a script is told by the command line: before the script runs, and as it has imported torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sentinel.runtime import RUNTIME
from sentinel.system.configuration import PINS, WORDS, configuration
from sentinel.system.launched import of_this_rank

if TYPE_CHECKING:
    from sentinel.session.auto import Follower
    from sentinel.session.request import Request
    from sentinel.system.configuration import Setting


def settings_wherever_the_script_goes() -> dict[str, Setting]:
    """What environment and file say, with absolute paths. Raises what `configuration` raises."""
    found = configuration()
    for name in set(_PATHS) & set(found):
        found[name] = replace(found[name], value=_PATHS[name](str(found[name].value)))
    return found


def said(arguments: argparse.Namespace, name: str) -> Any:
    """The command line's word, else what is configured; None where neither says anything."""
    given, configured = getattr(arguments, name), RUNTIME.configured or {}
    return configured[name].value if given is None and name in configured else given


def words_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of a session, for whatever folder the script goes to before it imports torch."""
    words = {name: word for name in (*WORDS, *PINS) if (word := getattr(arguments, name)) is not None}
    if "plan" in words and os.path.exists(own := of_this_rank(words["plan"])):
        words["plan"] = own  # as --save-plan wrote it
    return wherever_the_script_goes(words)


def asked_by(words: dict[str, Any]) -> Request:
    """What the session is asked for that begins with the script's loop. Raises what that session would raise for its
    words, also where a node is named whose memory can't be placed on here. With "auto" training goes on without."""
    from sentinel.session.asked_machine import machine_of
    from sentinel.session.request import Request, settled

    asked = settled(Request(**words), words)
    asked.check()
    if asked.slow.startswith("numa:"):
        machine_of(asked)
    require_tracker(asked.tracker)
    return asked


def prepare_session(words: dict[str, Any]) -> Follower:
    """Hand `words_of` the command line to the session that begins with the script's loop. Returns who finds that.
    Raises what `asked_by` raises, and with a file what `start_profile` does."""
    from sentinel.session import set_overrides, start_profile
    from sentinel.session.auto import Follower
    from sentinel.tiers.file_tier import is_file

    asked = asked_by(words)
    held = {"slow": asked.slow} if is_file(asked.slow) else {}  # also by a setting, whatever the script asks for
    set_overrides({**words, **held})
    follower = Follower()
    if is_file(asked.slow):
        start_profile()  # before the script builds its model, and without a loop to be found
        follower.give_way()
    return follower


def wherever_the_script_goes(words: Mapping[str, Any]) -> dict[str, Any]:
    """`words` with absolute paths: a session begins in the folder that the script is in by then."""
    return {name: _PATHS[name](word) if word and name in _PATHS else word for name, word in words.items()}


def _path_from_here(text: str) -> str:
    """An absolute path; a name, as of a described machine, stays."""
    return os.path.abspath(text) if os.sep in text or os.path.splitext(text)[1] else text


def file_from_here(slow: str) -> str:
    """A file tier in an absolute folder; what is none, or names no folder, stays."""
    word, is_file, folder = slow.partition("file:")
    return slow if word or not is_file or folder.partition("=")[0] == "auto" else f"file:{os.path.abspath(folder)}"


_PATHS: dict[str, Callable[[str], str]] = {
    "plan": os.path.abspath,
    "machine": _path_from_here,
    "slow": file_from_here,
}


def require_tracker(name: str) -> None:
    """Raises CapabilityError where the page tracker that is asked for does not work here."""
    from sentinel.profiler.pages import obstacle

    if name != "ops" and not name.startswith("auto") and (refused := obstacle(name)) is not None:
        raise refused
