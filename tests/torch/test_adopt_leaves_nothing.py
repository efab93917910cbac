"""Counting references must not add any: what training frees after start_profile() is freed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

PROGRAM = """
import gc, weakref, torch, sentinel
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 256)).sum().backward()
grad = weakref.ref(model[0].weight.grad)
gc.collect()
gc.disable()
sentinel.annotate(model, optimizer)
sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
assert grad() is not None
optimizer.zero_grad()
assert grad() is None, gc.get_referrers(grad())
print("freed")
"""


@pytest.mark.needs("torch", "compiler")
def test_a_gradient_dies_at_zero_grad_in_a_fresh_process() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=600)
    assert ran.stdout == "freed\n", ran.stderr


def test_a_weak_reference_tells_whether_a_tensor_lives() -> None:
    """Negative control: held, it is alive."""
    held = torch.ones(3)
    assert weakref.ref(held)() is held
    gc.collect()
    assert weakref.ref(held)() is held
