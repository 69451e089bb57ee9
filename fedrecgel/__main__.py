"""``python -m fedrecgel``."""

import sys

from fedrecgel.cli import main

sys.exit(main())
