"""What a program would take of a real IPU system: its memory, its time, and advice."""

from tensorflow_ipu.analysis.machine import *  # noqa: F403
from tensorflow_ipu.analysis.machine import __all__  # noqa: F401
