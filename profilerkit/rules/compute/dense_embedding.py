"""CP013: an embedding gets a gradient for every row, and a step looks up few."""

from profilerkit.rules.api import Facts, Fix, MissingData, Passed, Result, Rule, fired, rows, saving, spent, unsure
from profilerkit.units import format_count, format_ratio


class DenseEmbedding(Rule, frozen=True):
    """Find embedding tables that get a gradient for every row while a step looks up fewer than half of them.

    Why it costs: The gradient and the optimizer go over the whole table, however few rows a batch holds.

    Example:
        table = nn.Embedding(300_000, 64)
        optimizer = torch.optim.Adam(table.parameters())
    Use instead:
        table = nn.Embedding(300_000, 64, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
    How it is measured: A trace with shapes shows the rows of a table and how many a step looks up. The time of the
        dense gradient and of the optimizer's work on whole tables is the bound. The saving is {avoidable_ratio} of it,
        for the rows that are not looked up.
    When it is wrong: A table that the output layer shares gets a dense gradient from there and is left out. Weight
        decay and gradient clipping need dense gradients.
    Sources: https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    """

    code = "CP013"
    summary = "An embedding gets gradients for rows that no step looks up"

    #: Looking up the rows, sorting them and updating them takes the rest (measured on a processor, Adam and SGD).
    avoidable_ratio: float = 0.9

    def check(self, facts: Facts) -> Result:
        found = facts.kernel_losses.tables if facts.kernel_losses is not None else facts.host.tables
        if found is None and not facts.trace_read:
            return MissingData("shapes of lookups are only seen in a trace", "profilerkit.profile(..., deep=True)")
        if found is None:
            return Passed("no embedding with a dense gradient was seen of which a step looks up few rows")
        expected = self.avoidable_ratio * found.unused_share
        if not self.worth_saying(facts, expected):
            return unsure(f"whole embedding tables take {format_ratio(found.share)} of the step", expected)
        more = f" {format_count(found.count)} tables are like this." if found.count > 1 else ""
        return fired(
            facts,
            bound="memory-bound",
            title=f"Gradients of embedding rows that are not looked up take {spent(facts, found.share)}",
            why=f"A step looks up at most {format_count(round(found.looked_up))} of {format_count(found.rows)} rows. "
            f"The gradient and the optimizer go over all of them.{more}",
            evidence=rows(
                facts,
                "operators of the traced steps",
                ("Work on whole embedding tables, share of the step", found.share, "ratio"),
                ("Rows that a step looks up, at most", found.looked_up, "count"),
                ("Rows of the table", found.rows, "count"),
                ("Width of the table", found.width, "count"),
                source="derived",
                n=None,
            ),
            at_most="medium",
            detail="bandwidth",
            saving=saving(expected, found.share),
            fix=Fix(
                text="Make the gradient sparse and give the table an optimizer for it, or take a smaller table.",
                code="table = torch.nn.Embedding(rows, width, sparse=True)\n"
                "optimizer = torch.optim.SparseAdam(table.parameters())  # the other parameters keep theirs",
            ),
            confirm="The optimizer's time must fall, and the loss must not change.",
        )
