"""The two machines that QEMU is asked for, as command lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = {"M": 1 << 20, "G": 1 << 30}
_CXL_GRANULE_BYTES = 256 << 20  # what a CXL decoder can address; kernel's drivers/cxl/core/hdm.c
_ROOM_FOR_DEVICES = "slots=4,maxmem=64G"  # addresses, not memory: the root image and the CXL device lie there

# QEMU computes a fused multiply-add in software, number by number: products of matrices take 18 times as long with it.
# Libraries that find none multiply and add apart. What has AVX and none is too rare for some, so it has no AVX either.
_PROCESSOR = "max,-avx,-avx2,-fma"

# initiator, target -> ns, GB/s: DRAM of the same socket, CXL memory behind one ASIC
_NEAR, _FAR = (90, 200), (250, 30)


def memory_bytes(text: str) -> int:
    """`512M` or `1G` in bytes.

    Raises:
        ValueError: it has no such form.
    """
    found = re.fullmatch(r"(\d+)([MG])", text)
    if not found or not int(found[1]):
        raise ValueError(f"{text!r} is not an amount of memory such as 512M or 1G")
    return int(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class Hardware:
    """What the guest has. `memory_bytes` is one amount per node, fast first. `removable`: node 1 can go offline."""

    memory_bytes: tuple[int, int]
    cxl: bool = False
    cpus_on_both: bool = False
    removable: bool = False

    def __post_init__(self) -> None:
        if self.cxl and self.memory_bytes[1] % _CXL_GRANULE_BYTES:
            raise ValueError("the memory of a CXL device is a multiple of 256M")
        if self.cxl and self.cpus_on_both:
            raise ValueError("CXL memory has no CPUs: --cxl and --cpus-on-both exclude each other")
        if self.removable and (self.cxl or self.cpus_on_both):
            raise ValueError("--removable excludes --cxl and --cpus-on-both: its node 1 is a DIMM and nothing else")

    def arguments(self) -> list[str]:
        """QEMU's arguments for processor, memory and topology."""
        return self._cxl_machine() if self.cxl else self._two_nodes()

    def _two_nodes(self) -> list[str]:
        fast, slow = self.memory_bytes
        cpus = 2 if self.cpus_on_both else 1
        there_at_boot = fast if self.removable else fast + slow
        memory_of_node_1 = "" if self.removable else "memdev=ram1,"
        return [
            *("-machine", "q35,hmat=on"),
            *("-accel", "tcg,thread=multi"),
            *("-cpu", _PROCESSOR),
            *("-smp", f"{cpus},sockets={cpus}"),
            *("-m", f"{there_at_boot >> 20}M,{_ROOM_FOR_DEVICES}"),
            *_each("-object", [f"memory-backend-ram,id=ram{i},size={n}" for i, n in enumerate(self.memory_bytes)]),
            *("-numa", "node,nodeid=0,memdev=ram0,cpus=0"),
            *("-numa", f"node,nodeid=1,{memory_of_node_1}" + ("cpus=1" if self.cpus_on_both else "initiator=0")),
            *(("-device", "pc-dimm,memdev=ram1,node=1") if self.removable else ()),
            *("-numa", "dist,src=0,dst=1,val=20"),
            *_each("-numa", [line for initiator in range(cpus) for line in _hmat(initiator)]),
        ]

    def _cxl_machine(self) -> list[str]:
        dram, device = self.memory_bytes
        return [
            *("-machine", "q35,cxl=on"),
            *("-accel", "tcg,thread=multi"),
            # under a hypervisor bit the kernel refuses to flush caches, and with that the region's commit
            *("-cpu", f"{_PROCESSOR},-hypervisor"),
            *("-smp", "1"),
            *("-m", f"{dram >> 20}M,{_ROOM_FOR_DEVICES}"),
            *("-object", f"memory-backend-ram,id=cxlram,size={device}"),
            *("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1"),
            *("-device", "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2"),
            *("-device", "cxl-type3,bus=rp0,volatile-memdev=cxlram,id=cxl0"),
            *("-machine", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"),
        ]


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _hmat(initiator: int) -> list[str]:
    lines = []
    for target in (0, 1):
        latency_ns, gb_per_s = _NEAR if initiator == target else _FAR
        common = f"hmat-lb,initiator={initiator},target={target},hierarchy=memory"
        lines.append(f"{common},data-type=access-latency,latency={latency_ns}")
        lines.append(f"{common},data-type=access-bandwidth,bandwidth={gb_per_s}G")
    return lines
