"""The command ``fl-lightning``; apart from the library, so that ``--help`` does not load PyTorch."""
