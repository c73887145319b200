"""Report to view: the one place that decides what is said, in which order, with which numbers."""

from profilerkit.model.report import Report
from profilerkit.report import breakdown, communication, crowd, crowd_tables, kernels, recorded, sections, wording
from profilerkit.report.cost import cost_view
from profilerkit.report.findings import cards_of, headline_evidence, others_of, outcome_groups
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.ledger import input_missing, wall_view
from profilerkit.report.logs import logs_view
from profilerkit.report.memory import memory_view
from profilerkit.report.oom import oom_view
from profilerkit.report.probes import probes_view
from profilerkit.report.records import View
from profilerkit.report.sampled import sample_tables
from profilerkit.report.tiles import tiles_of
from profilerkit.report.timeline import step_view
from profilerkit.report.waterfall import replay_facts, waterfall_view
from profilerkit.report.workers import workers_view

_TOP_CHANGES = 3


def build(report: Report) -> View:
    """The report in words. Text from the recording is inert: one line, bounded, without control characters."""
    cards, stated = cards_of(report)
    changes = tuple(card for card in cards if card.fix)[:_TOP_CHANGES]
    return View(
        run_name=inert(report.run.name) or "run",
        kind=wording.kind_of(report.verdict, report.findings()),
        headline=inert(report.verdict.headline, 200),
        headline_evidence=headline_evidence(report, cards),
        stated=stated,
        consequence=wording.consequence_of(report),
        limits=wording.limits_of(report),
        tiles=tiles_of(report),
        bar=breakdown.bar_of(report.breakdown),
        bar_caption=breakdown.bar_caption(report),
        parts=breakdown.part_rows(report.breakdown),
        parts_missing=breakdown.parts_missing(report),
        input_missing=input_missing(report),
        wall=wall_view(report),
        change_heading=wording.change_heading(report.findings()),
        cards=cards,
        changes=changes,
        no_change="" if changes else wording.no_change_text(report),
        others=others_of(report),
        refuted_by=inert(report.verdict.refuted_by, SENTENCE_LIMIT),
        steps=step_view(report),
        ranks=breakdown.rank_rows(report),
        ranks_caption=breakdown.ranks_caption(report),
        ranks_more=breakdown.ranks_more(report),
        waiting=(*crowd.crowd_lines(report), *communication.waiting_lines(report)),
        crowd=crowd_tables.crowd_tables(report),
        ledger=communication.ledger_table(report),
        workers=workers_view(report),
        memory=memory_view(report),
        oom=oom_view(report),
        compute=kernels.compute_facts(report),
        kernels=kernels.kernel_table(report),
        top_kernels=kernels.short_kernel_table(report),
        collectives=communication.collective_table(report),
        recorded=recorded.recorded_table(report),
        models=recorded.model_facts(report),
        windows=sections.window_table(report),
        trust=(*sections.trust_facts(report), *replay_facts(report)),
        signals=sections.signal_rows(report),
        measured_signals=sections.measured_signals(report),
        notes=tuple(inert(note, SENTENCE_LIMIT) for note in report.trust.notes),
        outcomes=outcome_groups(report),
        rule_count=wording.rule_count(report.outcomes),
        other_outcomes=wording.other_outcomes(report.outcomes),
        run=(*sections.run_facts(report), *communication.parallel_facts(report)),
        loader=sections.loader_facts(report),
        versions=sections.mapping_facts(report.run.versions),
        settings=sections.mapping_facts(report.run.settings),
        samples=sample_tables(report),
        created=inert(report.run.created, 40),
        waterfall=waterfall_view(report),
        cost=cost_view(report),
        logs=logs_view(report),
        probes=probes_view(report),
    )
