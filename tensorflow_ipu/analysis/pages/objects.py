"""The pages of objects other than reports: a title, a sentence, tables and pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from markupsafe import Markup

from tensorflow_ipu._base.notebook import Facts, NotebookText, NotebookView, Table
from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.analysis.machine import Suggestion, Suggestions, System
from tensorflow_ipu.analysis.pages.templates import page_of, render
from tensorflow_ipu.analysis.pipelines.comparison import Balance, Comparison
from tensorflow_ipu.analysis.pipelines.cost import PlanCost, StageCosts
from tensorflow_ipu.analysis.pipelines.picture import picture_of
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule
from tensorflow_ipu.pipelining.schedule.plan import Plan

_SHOWN = 12  # The number of candidates of a comparison that are listed.


@page_of.register
def _(view: NotebookView) -> str:
    return page_of(view._facts())


@page_of.register
def _(text: NotebookText) -> str:
    return page_of(text.content)


@page_of.register
def _(facts: Facts) -> str:
    return _page(facts.title, facts.text, *facts.tables)


def _page(title: str, text: str, *sections: Table | str) -> str:
    return render("object.html.jinja", title=title, text=text, sections=sections)


@page_of.register
def _(plan: Plan) -> str:
    text = f"{plan.heading}. The lengths of boxes are the default costs of `plan_cost`."
    return _page(f"Plan {plan.name}", text, _picture([plan], None, None))


@page_of.register
def _(cost: PlanCost) -> str:
    rows = [
        (
            ipu.ipu,
            ", ".join(name for name, _ in ipu.depths),
            f"{ipu.busy / cost.time if cost.time else 0:.0%}",
            *map(format_bytes, (ipu.stash_bytes, ipu.weight_bytes, ipu.on_chip_bytes, ipu.off_chip_bytes)),
        )
        for ipu in cost.ipus
    ]
    heads = ("IPU", "stages", "busy", "stash", "weights", "on the chip", "off the chip")
    return _page(f"Cost of {cost.plan.heading}", f"{cost._summary}.", Table(rows, heads, 5))


@page_of.register
def _(comparison: Comparison) -> str:
    runnable = [candidate for candidate in comparison.candidates if not candidate.refused]
    has_sizes = any(candidate.cost and candidate.cost.peak_bytes for candidate in runnable)
    sections: list[Table | str] = []
    rows = [
        (
            candidate.label,
            f"{cost.time:.4g}" if comparison._machine is None else format_seconds(cost.time),
            f"{cost.bubble_share:.0%}",
            *([format_bytes(cost.peak_bytes)] if has_sizes else []),
        )
        for candidate in runnable[:_SHOWN]
        if (cost := candidate.cost)
    ]
    if rows:
        heads = ("candidate", "a pass", "bubble", "memory")
        sections.append(Table(rows, heads if has_sizes else heads[:3], 3 if has_sizes else 2))
    best = [
        candidate.cost.plan
        for schedule in PipelineSchedule
        if (candidate := comparison.best_of(schedule)) and candidate.cost
    ]
    if best:
        sections.append(_picture(best, comparison._stage_costs, comparison._machine))
    refused = [(candidate.label, candidate.refused) for candidate in comparison.candidates if candidate.refused]
    if refused:
        summary = f"{len(refused)} candidates that cannot be run"
        sections.append(Table(refused, ("candidate", "reason"), summary=summary))
    note = f" The {_SHOWN} fastest of {len(runnable)} candidates are:" if len(runnable) > _SHOWN else ""
    return _page("Comparison of plans", f"{comparison.reason}.{note}", *sections)


@page_of.register
def _(balance: Balance) -> str:
    heads = ("layers", "stage", "a micro-batch", "memory", "of an IPU")
    rows = [(layers, *figures) for *figures, layers in balance._rows()]
    text = (
        balance._summary if balance.fits else f"{balance._summary}; it does not fit, and no split that was tried does"
    )
    picture = _picture([balance.cost.plan], balance.costs, balance._machine)
    return _page("Balance of a pipeline", f"{text}.", Table(rows, heads, 4), picture)


@page_of.register
def _(advice: Suggestions) -> str:
    def table(heading: str, suggestions: Sequence[Suggestion]) -> list[Table | str]:
        rows = [
            (change.change, f"x {change.speed:.2f}", format_bytes(change.memory), change.verdict)
            for change in suggestions
        ]
        return [Table(rows, (heading, "speed", "memory", ""), 3)] if rows else []

    sections = table("each change on its own", advice)
    if advice.recipe is not None:
        combined = table("changes together, each in addition to those above", advice.recipe.steps)
        sections = [*combined, Markup("<pre>{}</pre>").format(advice.recipe.code), *sections]
    not_evaluated = Table([(change.change, change.why) for change in advice.not_asked], ("not evaluated", "reason"))
    return _page(
        "Changes that help", "" if sections else "No change that was evaluated helps.", *sections, not_evaluated
    )


def _picture(plans: Sequence[Plan], stage_costs: StageCosts, machine: System | None) -> Markup:
    data = base64.b64encode(picture_of(plans, stage_costs, machine=machine)).decode()
    return Markup('<img alt="{}" style="max-width: 100%" src="data:image/png;base64,{}">').format(
        "; ".join(plan.heading for plan in plans), data
    )
