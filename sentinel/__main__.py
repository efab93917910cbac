"""`python -m sentinel` is the command line."""

import sys

from sentinel.cli import main

sys.exit(main())
