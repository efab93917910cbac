"""After gc.freeze() a session manages what it manages without, and what was frozen is frozen afterwards."""

from __future__ import annotations

import gc
import sys

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.migration.frozen_objects import all_objects, thawed
from tests import warm

pytestmark = pytest.mark.needs("torch", "compiler")

SCRIPT = """
import gc, threading, torch, sentinel
from sentinel.session import current
from tests.torch.bit_identity_cases import ASKED, job

def trained(freeze, session):
    work = job()
    losses = [work.step(0)]
    if freeze:
        gc.collect()
        gc.freeze()
    frozen = gc.get_freeze_count()
    managed = 0
    if session:
        with sentinel.annotate(work.models, work.optimizers):
            sentinel.start_profile(**ASKED)
            losses.append(work.step(1))
            sentinel.end_profile()
            losses += [work.step(i) for i in range(2, 6)]
            memory = current().context.memory
            held = current().context.job.persistent()
            managed = sum(memory.contains(tensor.data_ptr()) for _, tensor, role in held if role != "grad")
            assert (gc.get_freeze_count() >= frozen) if freeze else (gc.get_freeze_count() == 0)
            sentinel.stop()
    else:
        losses += [work.step(i) for i in range(1, 6)]
    gc.unfreeze()
    return losses, managed

if {threads}:
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
stock, _ = trained(False, False)
plain, expected = trained(False, True)
frozen, managed = trained(True, True)
assert stock == plain == frozen
assert expected and managed == expected, (managed, expected)
"""


@pytest.mark.parametrize("threads", [False, True], ids=["alone", "beside another thread"])
def test_what_was_frozen_is_managed(threads: bool) -> None:
    script = SCRIPT.replace("{threads}", str(threads))
    done = warm.run([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr


def test_frozen_objects_are_shown_and_nothing_is_frozen_that_was_not() -> None:
    gc.unfreeze()  # what the collection of tests has frozen
    own = [object()]
    with thawed():
        assert any(found is own for found in gc.get_objects())
    assert not gc.get_freeze_count()
    gc.freeze()
    try:
        assert not any(found is own for found in gc.get_objects())
        assert any(found is own for found in all_objects())
        assert gc.get_freeze_count()
        assert not any(found is own for found in gc.get_objects())
    finally:
        gc.freeze()
