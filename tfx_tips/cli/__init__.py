"""The command `tfx-tips`: arguments and printing; no logic of its own."""
