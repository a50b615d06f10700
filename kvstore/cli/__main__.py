"""python -m kvstore.cli"""

import sys

from kvstore.cli import main

sys.exit(main())
