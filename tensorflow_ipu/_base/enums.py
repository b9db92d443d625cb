"""The base class of public enums whose members are integers."""

from enum import Enum, IntEnum


class NamedIntEnum(IntEnum):
    """Prints members as Python 3.6 to 3.10 do, on which the SDK ran: `str` has the name, `format` the number."""

    __str__ = Enum.__str__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)
