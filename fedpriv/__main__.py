"""`python -m fedpriv` is the command."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first, where a csv.py would hide the real one.
    if sys.path[0] in ("", os.getcwd()):
        del sys.path[0]

    from fedpriv.commands.main import main

    main()
