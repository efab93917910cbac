"""What a native call's errno tells a user to do."""

from __future__ import annotations

import errno

import pytest

from sentinel.core.errors import NativeError
from sentinel.system import native


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EPERM, "call it elsewhere"),
        (errno.ENOMEM, "ulimit -v"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EFBIG, "ulimit -f"),
    ],
)
def test_the_remedy_is_that_of_the_errno(code: int, says: str) -> None:
    with pytest.raises(NativeError) as told:
        native.check("sn_record", -code, "call it elsewhere")
    assert told.value.errno == code
    assert str(told.value).startswith("sn_record: ")
    assert says in str(told.value)
    assert ("elsewhere" in str(told.value)) == (code == errno.EPERM)


def test_what_is_not_negative_is_passed_on() -> None:
    assert native.check("sn_record", 7, "call it elsewhere") == 7
