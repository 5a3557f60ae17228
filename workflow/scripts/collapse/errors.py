"""The two ways in which this project declines to give a number."""


class Refusal(Exception):
    """Input that cannot be right: the message says what was found, where, and what to do. The job fails."""


class Undefined(Exception):
    """A quantity that has no value on this input. It becomes a null with this reason, never a number."""
