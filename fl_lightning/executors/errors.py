"""Why clients cannot be trained at once."""


class CannotVectorize(Exception):
    """Something needs one model at a time; the message names it, and the way out where there is one."""
