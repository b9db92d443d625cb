"""The pages of objects that are no reports: a title, a sentence, and tables and pictures below each other."""

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

_SHOWN = 12  # So many candidates.


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
    text = f"{plan.heading}. Boxes are as long as `plan_cost` has it by default."
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
    heads = ("IPU", "stages", "busy", "stash", "weights", "on the chip", "off it")
    return _page(f"Cost of {cost.plan.heading}", f"{cost._summary}.", Table(rows, heads, 5))


@page_of.register
def _(comparison: Comparison) -> str:
    run = [one for one in comparison.candidates if not one.refused]
    sized = any(one.cost and one.cost.peak_bytes for one in run)  # Else no sizes were given.
    sections: list[Table | str] = []
    rows = [
        (
            one.label,
            f"{cost.time:.4g}" if comparison._machine is None else format_seconds(cost.time),
            f"{cost.bubble_share:.0%}",
            *([format_bytes(cost.peak_bytes)] if sized else []),
        )
        for one in run[:_SHOWN]
        if (cost := one.cost)
    ]
    if rows:
        sections.append(Table(rows, ("", "a pass", "bubble", "memory")[: 3 + sized], 2 + sized))
    best = [found.cost.plan for each in PipelineSchedule if (found := comparison.best_of(each)) and found.cost]
    if best:
        sections.append(_picture(best, comparison._stage_costs, comparison._machine))
    refused = [(one.label, one.refused) for one in comparison.candidates if one.refused]
    if refused:
        sections.append(Table(refused, ("", "why"), summary=f"{len(refused)} that cannot be run"))
    more = f" Of {len(run)} candidates, the {_SHOWN} fastest:" if len(run) > _SHOWN else ""
    return _page("Comparison of plans", f"{comparison.reason}.{more}", *sections)


@page_of.register
def _(balance: Balance) -> str:
    heads = ("layers", "stage", "a micro-batch", "memory", "of an IPU")
    rows = [(layers, *figures) for *figures, layers in balance._rows()]
    text = balance._summary if balance.fits else f"{balance._summary}; it does not fit: no split that was tried does"
    picture = _picture([balance.cost.plan], balance.costs, balance._machine)
    return _page("Balance of a pipeline", f"{text}.", Table(rows, heads, 4), picture)


@page_of.register
def _(advice: Suggestions) -> str:
    def table(heading: str, suggestions: Sequence[Suggestion]) -> list[Table | str]:
        rows = [(one.change, f"x {one.speed:.2f}", format_bytes(one.memory), one.verdict) for one in suggestions]
        return [Table(rows, (heading, "speed", "memory", ""), 3)] if rows else []

    sections = table("each change alone", advice)
    if advice.recipe is not None:
        together = table("all together, each after those above", advice.recipe.steps)
        sections = [*together, Markup("<pre>{}</pre>").format(advice.recipe.code), *sections]
    others = Table([(one.change, one.why) for one in advice.not_asked], ("not asked", "why"))
    return _page("What would help", "" if sections else "Nothing that was asked.", *sections, others)


def _picture(plans: Sequence[Plan], stage_costs: StageCosts, machine: System | None) -> Markup:
    data = base64.b64encode(picture_of(plans, stage_costs, machine=machine)).decode()
    return Markup('<img alt="{}" style="max-width: 100%" src="data:image/png;base64,{}">').format(
        "; ".join(plan.heading for plan in plans), data
    )
