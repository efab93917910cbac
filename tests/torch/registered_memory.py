"""A program whose tensors a device's driver has registered, and that says what the device sees of them at the end.

python -m tests.torch.registered_memory DRIVER CASE [DIRECTORY]

DRIVER is a library that is made up for this (`registered_driver.cpp`): it answers as CUDA's does. The device is a pipe:
vmsplice() pins a page, and who reads the pipe finds what that page holds by then.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from typing import Any

import torch
from torch import nn

import sentinel
from sentinel.core.units import PAGE_BYTES
from tests.torch.passive_cases import STEPS, mlp

_SLOW = "emulated:cxl-asic-x8"


class IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class Device:
    """Has the first page of `tensor` from now on, all of which `driver` says is registered."""

    def __init__(self, driver: ctypes.CDLL, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        address = tensor.data_ptr()
        ctypes.memset(address, ctypes.string_at(address, 1)[0], 1)  # a driver pins to write, which makes the page
        driver.register_range(ctypes.c_uint64(address), ctypes.c_uint64(tensor.untyped_storage().nbytes()))
        self._out, into = os.pipe()
        call = ctypes.CDLL(None, use_errno=True).vmsplice
        call.restype = ctypes.c_ssize_t
        there = IoVec(address + -address % PAGE_BYTES, PAGE_BYTES)
        moved = call(into, ctypes.byref(there), ctypes.c_size_t(1), 0)
        assert moved == PAGE_BYTES, os.strerror(ctypes.get_errno())

    def sees_the_tensor(self) -> bool:
        """Whether the page holds what the tensor does."""
        address = self._tensor.data_ptr()
        there = ctypes.string_at(address + -address % PAGE_BYTES, PAGE_BYTES)
        return os.read(self._out, PAGE_BYTES) == there


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, target: Any, steps: int) -> list[str]:
    losses = []
    for step in range(steps):
        loss = (model(batches[step % STEPS]) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()).hex())
    return losses


def main(driver_path: str, case: str, *folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    driver = ctypes.CDLL(driver_path, mode=ctypes.RTLD_GLOBAL)
    devices: list[Device] = []
    told: dict[str, Any] = {}
    if folder:
        sentinel.start_profile(fast="44MiB", slow=f"file:{folder[0]}=512MiB")
    model, batches, target = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    if case in ("file", "stock"):
        losses = trained(model, optimizer, batches, target, 1)
        devices = [Device(driver, model[index].weight) for index in (0, 6)]
        losses += trained(model, optimizer, batches, target, STEPS)
    else:
        sentinel.annotate(model, optimizer)
        losses = trained(model, optimizer, batches, target, 1)
        if case == "before":
            devices = [Device(driver, model[0].weight)]
        address = model[0].weight.data_ptr()
        tracker = "pagemap" if case == "within" else "ops"
        sentinel.start_profile(fast="30%", slow=_SLOW, tracker=tracker, model=model, optimizer=optimizer)
        if case == "within":
            devices = [Device(driver, model[0].weight)]
        losses += trained(model, optimizer, batches, target, 1)
        sentinel.end_profile()
        losses += trained(model, optimizer, batches, target, 1)
        told["stayed"] = address == model[0].weight.data_ptr()
        told["reasons"] = {name: reason for name, _, reason in sentinel.report().setup.in_place}
        sentinel.stop()
        if case == "between":
            devices = [Device(driver, model[0].weight)]
            tracker = os.environ["TRACKER"]
            try:
                sentinel.start_profile(fast="30%", slow=_SLOW, tracker=tracker, model=model, optimizer=optimizer)
            except sentinel.SentinelError as error:
                told["refused"] = str(error)
            losses += trained(model, optimizer, batches, target, 1)
            if "refused" not in told:
                sentinel.end_profile()
            losses += trained(model, optimizer, batches, target, 2)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    told |= {"losses": losses, "digest": digest, "device_sees": [device.sees_the_tensor() for device in devices]}
    if case not in ("stock", "before"):
        told["text"] = sentinel.report().text() if "refused" not in told else ""
    return told


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
