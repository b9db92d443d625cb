"""A model of the machine: predicts the memory and the times of a program from its HLO."""

from tensorflow_ipu.analysis.machine.advice import (
    NotAsked,
    Recipe,
    Suggestion,
    Suggestions,
    SupplyAndDemand,
    TaskTime,
    Timeline,
)
from tensorflow_ipu.analysis.machine.costs import gather_seconds
from tensorflow_ipu.analysis.machine.machine import (
    BOW,
    GC2,
    GC200,
    Machine,
    Setting,
    System,
    autosave,
    setting_of,
    system_of,
    systems,
)
from tensorflow_ipu.analysis.machine.memory import Kept, Memory, memory_of_parts, told_apart
from tensorflow_ipu.analysis.machine.report import Report, report_of
from tensorflow_ipu.analysis.machine.search import advice_of_reading, advice_on_state, changed
from tensorflow_ipu.analysis.machine.text import compare_reports
from tensorflow_ipu.analysis.machine.walk import OperationTime

__all__ = [
    "BOW",
    "GC2",
    "GC200",
    "Kept",
    "Machine",
    "Memory",
    "NotAsked",
    "OperationTime",
    "Recipe",
    "Report",
    "Setting",
    "Suggestion",
    "Suggestions",
    "SupplyAndDemand",
    "System",
    "TaskTime",
    "Timeline",
    "advice_of_reading",
    "advice_on_state",
    "autosave",
    "changed",
    "compare_reports",
    "gather_seconds",
    "memory_of_parts",
    "report_of",
    "setting_of",
    "system_of",
    "systems",
    "told_apart",
]
