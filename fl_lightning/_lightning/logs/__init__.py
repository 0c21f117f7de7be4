"""Logs from inside clients and rounds, and progress bars."""
