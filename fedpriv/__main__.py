"""`python -m fedpriv` is the command."""

from fedpriv.cli import main

if __name__ == "__main__":
    main()
