"""What the session of a script is told by the command line, before the script runs."""

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
    for name in {"machine", "plan"} & set(found):
        found[name] = replace(found[name], value=_path_from_here(str(found[name].value)))
    return found


def said(arguments: argparse.Namespace, name: str) -> Any:
    """The command line's word, else what is configured; None where neither says anything."""
    given, configured = getattr(arguments, name), RUNTIME.configured or {}
    return configured[name].value if given is None and name in configured else given


def words_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of a session."""
    return {name: word for name in (*WORDS, *PINS) if (word := getattr(arguments, name)) is not None}


def asked_by(words: dict[str, Any]) -> Request:
    """What the session is asked for that begins with the script's loop. Raises what that session would raise for its
    words, also where a node is named whose memory can't be placed on here. With "auto" training goes on without."""
    from sentinel.session.asked_machine import machine_of
    from sentinel.session.request import Request, settled

    if "plan" in words and os.path.exists(own := of_this_rank(words["plan"])):
        words["plan"] = own  # as --save-plan wrote it
    asked = settled(Request(**words), words)
    asked.check()
    if asked.slow.startswith("numa:"):
        machine_of(asked)
    require_tracker(asked.tracker)
    return asked


def prepare_session(arguments: argparse.Namespace) -> Follower:
    """Hand the words of the command line to the session that begins with the script's loop. Returns who finds that.
    Raises what `asked_by` raises."""
    from sentinel.session import set_overrides, start_profile
    from sentinel.session.auto import Follower
    from sentinel.tiers.file_tier import is_file

    words = words_of(arguments)
    asked = asked_by(words)
    if is_file(asked.slow):  # also by a setting: what begins before the script holds whatever the script asks for
        words["slow"] = asked.slow
    set_overrides(wherever_the_script_goes(words))
    follower = Follower()
    if is_file(asked.slow):
        start_profile()  # before the script builds its model, and without a loop to be found
        follower.give_way()
    return follower


def wherever_the_script_goes(words: Mapping[str, Any]) -> dict[str, Any]:
    """`words` with absolute paths: a session begins in the folder that the script is in by then."""
    paths: dict[str, Callable[[str], str]] = {"plan": os.path.abspath, "machine": _path_from_here}
    return {name: paths[name](word) if word and name in paths else word for name, word in words.items()}


def _path_from_here(text: str) -> str:
    """An absolute path; a name, as of a described machine, stays."""
    return os.path.abspath(text) if os.sep in text or os.path.splitext(text)[1] else text


def require_tracker(name: str) -> None:
    """Raises CapabilityError where the page tracker that is asked for does not work here."""
    from sentinel.profiler.pages import obstacle

    if name != "ops" and not name.startswith("auto") and (refused := obstacle(name)) is not None:
        raise refused
