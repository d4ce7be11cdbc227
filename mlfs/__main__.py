"""`python -m mlfs`: the same as `mlfs`."""

from mlfs.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
