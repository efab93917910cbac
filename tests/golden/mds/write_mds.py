"""Writes the folders beside it. They are kept, for their library needs more packages than all of this repository:

pip install mosaicml-streaming==0.13.0
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter  # type: ignore[import-not-found]

NUMBERS = ("uint8", "uint16", "int32", "int64", "float16", "float32", "float64")
COLUMNS = {
    **{name: name for name in ("bytes", "str", "int", "json", "str_int", "str_float", "str_decimal", "pil", "png")},
    **{name: name for name in NUMBERS},
    "array": "ndarray",
    "array_of_floats": "ndarray:float32",
    "array_of_form": "ndarray:float32:2,3",
}


def sample(i: int) -> dict[str, object]:
    """Sample i, as test_data_mds.py expects it."""
    picture = Image.new("RGB", (3, 2), (i, 2 * i, 3))
    shaped = np.arange(6, dtype=np.float32).reshape(2, 3) + i
    return {
        **{name: np.dtype(name).type(i) for name in NUMBERS},
        "bytes": bytes([i]) * i,
        "str": f"sample {i} ü",
        "int": -i,
        "json": {"number": i, "list": [1, None]},
        "str_int": 10**20 + i,
        "str_float": i / 3,
        "str_decimal": Decimal(i) / 8,
        "pil": picture,
        "png": picture,
        "array": np.arange(i + 1, dtype=np.uint16).reshape(1, -1),
        "array_of_floats": shaped,
        "array_of_form": shaped,
    }


if __name__ == "__main__":
    for name in ("raw", "zstd", "gz"):
        compression = None if name == "raw" else name
        where = str(Path(__file__).parent / name)
        with MDSWriter(out=where, columns=COLUMNS, compression=compression, size_limit=3000) as writer:
            for i in range(12):
                writer.write(sample(i))
