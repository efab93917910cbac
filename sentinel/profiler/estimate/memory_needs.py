"""How much memory a step needs, by what it is for."""

from __future__ import annotations

import numpy as np

from sentinel.core.profile import Profile
from sentinel.core.trace import ROLES
from sentinel.planner import footprint_bytes


def needs_of(profile: Profile) -> dict[str, int]:
    """Bytes: the most of each role, what lives across steps, all at once, and packed; and operations of the step."""
    t = profile.tensors
    live = profile.live_bytes_by_role()
    return {
        **{f"{role}_bytes": int(live[number].max()) for number, role in enumerate(ROLES)},
        "persistent_bytes": int(t["nbytes"][t["persistent"]].sum()),
        "live_peak_bytes": profile.live_peak_bytes + profile.unmanaged_peak_bytes,
        "footprint_bytes": footprint_bytes(profile),
        "flops": int(np.maximum(profile.flops, 0).sum()),
    }
