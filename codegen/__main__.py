"""`python -m kvfsm.codegen` is the command `kvfsm`."""

import sys

from .cli import main

sys.exit(main())
