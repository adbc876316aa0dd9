"""The ``polybatch`` command: compile, inspect, generate, serve, chat.

Nothing here imports torch or transformers until a command needs them, so that ``polybatch --help`` is quick.
"""

from polybatch.cli.app import app, main

__all__ = ["app", "main"]
