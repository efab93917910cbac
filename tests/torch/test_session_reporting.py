"""What the report of a session is made of: counted until it ends, also where it is asked for later."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.session.reporting import Reporting  # noqa: E402
from tests.torch.test_session_states import states  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def test_what_comes_after_the_end_is_not_in_the_report() -> None:
    session = states([(0, 1, 2, 3)] * 6)
    before = session.report(bounded=False)
    kept = [torch.ones(1 << 18) for _ in range(8)]  # of torch's own allocator
    after = session.report(bounded=False)
    assert len(kept) == 8
    assert after.headline == before.headline
    assert after.setup.unmanaged == before.setup.unmanaged
    assert after.setup.notes == before.setup.notes


def test_a_report_before_a_step_was_profiled_is_refused() -> None:
    layer = torch.nn.Linear(8, 8)
    sentinel.start_profile(layer, fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
    try:
        with pytest.raises(UsageError, match="no step has been profiled"):
            sentinel.report()
    finally:
        sentinel.stop()


def test_the_counters_of_the_end_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Reporting] = []
    count = Reporting.count

    def counting(self: Reporting) -> None:
        counted.append(self)
        count(self)

    monkeypatch.setattr(Reporting, "count", counting)
    session = states([(0, 1, 2, 3)] * 4)
    assert len(counted) == 1
    assert session.notes == counted[0].notes()
