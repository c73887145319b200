"""CP007: convolutions pay for the conversion of their layout."""

from profilerkit.model.finding import Fix, SettingChange
from profilerkit.rules.api import Facts, NotApplicable, Passed, Result, Rule, fired, no_device, saving, unsure
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio


class ChannelsFirst(Rule, frozen=True):
    """Find kernels that convert NCHW to NHWC and back for {smallest_share} of the step.

    Why it costs: Tensor cores compute convolutions in NHWC. Data in NCHW is converted before and after.

    Example:
        y = nn.Conv2d(3, 8, 3)(torch.randn(1, 3, 8, 8))
    Use instead:
        conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
        y = conv(x)
    How it is measured: The conversion kernels are summed. The saving adds {reached_ratio} of the convolutions, a guess;
        the bound adds {most_ratio}.
    When it is wrong: An operator that needs NCHW brings the conversions back. In FP32 on vector units, NCHW is the
        faster layout.
    Sources: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    code = "CP007"
    summary = "Convolutions pay for layout conversions"

    smallest_share: float = 0.02
    #: Part of the convolutions' own time that the other layout saves at most, and is expected to save.
    most_ratio: float = 0.3
    reached_ratio: float = 0.1

    def check(self, facts: Facts) -> Result:
        if facts.kernel_losses is None:
            return no_device(facts, "no device events: there are no conversions to see")
        found = facts.kernel_losses.layout
        if not found.convolution_share and not found.conversion_share:
            return NotApplicable("no convolution runs on the device")
        share = found.conversion_share
        if share < self.smallest_share:
            return Passed(f"conversions of the layout take {format_ratio(share)} of the step")
        expected = share + self.reached_ratio * found.convolution_share
        if not self.worth_saying(facts, expected):
            return unsure(f"conversions of the layout take {format_ratio(share)} of the step", expected)
        order, name = ("NCDHW", "channels_last_3d") if found.is_3d else ("NCHW", "channels_last")
        other = " 3-D convolutions take channels_last_3d." if found.is_3d is None else ""
        origin, steps = "math kernels of convolution operators", facts.steps.steady
        n = round(found.per_step * steps)
        return fired(
            facts,
            bound="compute-bound",
            title=f"Conversions between NCHW and NHWC take {format_ratio(share)} of the step",
            why="The matrix units want the channels last, and the tensors have them second: each convolution converts "
            "what it reads, and often what it writes.",
            evidence=(
                kernel_share("Conversion kernels", share, found.example or "kernel names", n),
                kernel_share("Convolutions", found.convolution_share, origin, steps),
            ),
            at_most="medium",
            detail="layout",
            saving=saving(expected, min(share + self.most_ratio * found.convolution_share, 1.0)),
            fix=Fix(
                text=f"Memory format contiguous ({order}) → {name}, for the model and for its inputs.{other}",
                code=f"model = model.to(memory_format=torch.{name})\nimages = images.to(memory_format=torch.{name})",
                changes=() if found.is_3d else (SettingChange("channels_last", False, True),),
            ),
            confirm="The conversion kernels must be gone; where some stay, the operator before them wants NCHW.",
        )
