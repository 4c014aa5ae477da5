"""`python -m tfx_tips` is the command `tfx-tips`."""

from tfx_tips.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
