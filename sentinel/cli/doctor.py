"""`sentinel doctor`: what this host is and allows, and how to allow more."""

from __future__ import annotations

import argparse

from sentinel.cli.common import add_json, add_verb

