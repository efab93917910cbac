"""Whether the kernel has the files of a data set in its page cache, where reading ahead saves nothing."""

from __future__ import annotations

import os

import numpy as np

from sentinel.core.interrupts import let_through
from sentinel.data.data_index import DataFiles
from sentinel.data.sources.stored_file import LocalFile, opened
from sentinel.system.limits import available_bytes

_TRIED = 64
_MOST_BYTES = 4 << 20
"""Of a sample: trying to read larger ones whole would take longer than it tells."""


def all_cached(data: DataFiles) -> bool:
    """Whether 64 samples, drawn at random, are read without waiting for a disk, and all files take at most half of the
    memory that is available, so that they stay cached. False where files are not local, or their file system does not
    tell, and for chunks that are decoded as a whole."""
    layout = data.layout
    if layout.encoded or 2 * int(layout.file_nbytes.sum()) > available_bytes():
        return False
    samples = np.random.Generator(np.random.PCG64(0)).integers(layout.n_samples, size=_TRIED)
    chunks = layout.chunk_of[samples]
    at = layout.chunk_offset[chunks] + layout.sample_offset[samples]
    nbytes = np.minimum(layout.sample_nbytes[samples], _MOST_BYTES)
    for file, begin, wanted in zip(layout.chunk_file[chunks].tolist(), at.tolist(), nbytes.tolist(), strict=True):
        found = opened(os.path.join(data.root, layout.files[file]))
        if not isinstance(found, LocalFile) or not in_page_cache(found.descriptor, begin, wanted):
            return False
    return True


def in_page_cache(descriptor: int, at: int, nbytes: int = 1) -> bool:
    """Whether the kernel has these bytes of a file in memory; False where it does not tell."""
    try:
        return os.preadv(descriptor, [bytearray(nbytes)], at, os.RWF_NOWAIT) == nbytes
    except OSError as error:
        let_through(error)
        return False
