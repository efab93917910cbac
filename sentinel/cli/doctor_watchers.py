"""The doctor's part on who can watch: each tracker and the witness of migrations, tried."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sentinel.core.errors import CapabilityError, SentinelError
from sentinel.migration.witness import MigrationWitness
from sentinel.profiler.selftest import SelfTest, automatic, check_trackers

_LOG_ENTRIES = 1 << 12


@dataclass(frozen=True)
class Watchers:
    """`auto`: the tracker that `tracker="auto"` takes, None if none works; `not_taken`: why not each other one."""

    trackers: tuple[SelfTest, ...]
    auto: str | None
    not_taken: tuple[str, ...]
    witness: SelfTest

    def as_json(self) -> dict[str, Any]:
        """The keys of `sentinel doctor --json` that are about watching."""
        return {
            "trackers": [asdict(selftest) for selftest in self.trackers],
            "auto": {"tracker": self.auto, "not_taken": list(self.not_taken)},
            "witness": {key: value for key, value in asdict(self.witness).items() if key not in ("sees", "blind_to")},
        }

    def lines(self) -> list[str]:
        """For people."""
        found = ["\ntrackers, each tried on pages of its own"]
        for selftest in self.trackers:
            found += _told(selftest, " (auto takes it)" if selftest.tracker == self.auto else "")
        found += [f"     not taken by auto: {reason}" for reason in self.not_taken]
        return [*found, "\nwitness of migrations", *_told(self.witness, "")]


def examine() -> Watchers:
    """Try them all."""
    selftests = check_trackers()
    taken, reasons = automatic(selftests)
    return Watchers(tuple(selftests), taken, tuple(reasons), _witness())


def _witness() -> SelfTest:
    witness = MigrationWitness(_LOG_ENTRIES)
    try:
        witness.start([])
        return SelfTest("migrations", True, "a page moved to another node and back, and exactly that was seen")
    except CapabilityError as error:
        return SelfTest("migrations", False, f"{error.what}: {error.why}", error.remedy)
    except (SentinelError, OSError) as error:
        return SelfTest("migrations", False, str(error), "see the capabilities that are missing")
    finally:
        witness.stop()


def _told(selftest: SelfTest, remark: str) -> list[str]:
    if not selftest.available:
        return [f"no   {selftest.tracker}: {selftest.why}", f"       remedy  {selftest.remedy}"]
    found = [f"yes  {selftest.tracker}{remark}: {selftest.why}"]
    if selftest.sees:
        found.append(f"       sees     {' and '.join(selftest.sees)}")
    return found + [f"       not seen {what}" for what in selftest.blind_to]
