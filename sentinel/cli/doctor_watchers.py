"""The doctor's part on who can watch: each tracker and the witness of migrations, tried."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sentinel.core.errors import CapabilityError, SentinelError
from sentinel.migration.witness import MigrationWitness
from sentinel.profiler.trial import Trial, automatic, try_trackers

_LOG_ENTRIES = 1 << 12


@dataclass(frozen=True)
class Watchers:
    """`auto`: the tracker that `tracker="auto"` takes, None if none works; `not_taken`: why not each other one."""

    trackers: tuple[Trial, ...]
    auto: str | None
    not_taken: tuple[str, ...]
    witness: Trial

    def as_json(self) -> dict[str, Any]:
        """The keys of `sentinel doctor --json` that are about watching."""
        return {
            "trackers": [asdict(trial) for trial in self.trackers],
            "auto": {"tracker": self.auto, "not_taken": list(self.not_taken)},
            "witness": {key: value for key, value in asdict(self.witness).items() if key not in ("sees", "blind_to")},
        }

    def lines(self) -> list[str]:
        """For people."""
        found = ["\ntrackers, each tried on pages of its own"]
        for trial in self.trackers:
            found += _told(trial, " (auto takes it)" if trial.tracker == self.auto else "")
        found += [f"     not taken by auto: {reason}" for reason in self.not_taken]
        return [*found, "\nwitness of migrations", *_told(self.witness, "")]


def examine() -> Watchers:
    """Try them all."""
    trials = try_trackers()
    taken, reasons = automatic(trials)
    return Watchers(tuple(trials), taken, tuple(reasons), _witness())


def _witness() -> Trial:
    witness = MigrationWitness(_LOG_ENTRIES)
    try:
        witness.start([])
        return Trial("migrations", True, "a page moved to another node and back, and exactly that was seen")
    except CapabilityError as error:
        return Trial("migrations", False, f"{error.what}: {error.why}", error.remedy)
    except (SentinelError, OSError) as error:
        return Trial("migrations", False, str(error), "see the capabilities that are missing")
    finally:
        witness.stop()


def _told(trial: Trial, remark: str) -> list[str]:
    if not trial.available:
        return [f"no   {trial.tracker}: {trial.why}", f"       remedy  {trial.remedy}"]
    found = [f"yes  {trial.tracker}{remark}: {trial.why}"]
    if trial.sees:
        found.append(f"       sees     {' and '.join(trial.sees)}")
    return found + [f"       not seen {what}" for what in trial.blind_to]
