"""The base class of public enums whose members are integers."""

from enum import Enum, IntEnum


class NamedIntEnum(IntEnum):
    """An `IntEnum` whose members print as in Python 3.6 to 3.10: `str` returns the name, `format` the number.

    The SDK ran on these versions of Python.
    """

    __str__ = Enum.__str__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)
