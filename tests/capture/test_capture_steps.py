"""Where steps begin and end: the rules alone, with a clock of whole numbers and no torch."""

import gc

import pytest

from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind

LOADER, OTHER = 1, 2
ADAM, SGD = 11, 12


class Loop:
    """Plays a loop written as letters into a tracker; each letter takes 10.

    L fetch from the training loader, E from an evaluation loader, X the training loader is exhausted, Y the other one,
    B backward pass, O and P steps of two optimizers, S step(), ``(`` and ``)`` a backward pass with things inside.
    """

    def __init__(self, wrapped=False):
        self.now = 0
        self.records = []
        self.window = []
        self.tracker = StepTracker(self.records.append, self, clock=lambda: self.now)
        self.wrapped = wrapped
        self.iterator = type("Iterator", (), {"source": "loader"})()

    def step_started(self, number):
        self.window.append(("start", number))

    def step_ended(self, number, dur_ns):
        self.window.append(("end", number))

    def step_cut(self):
        self.window.append(("cut",))

    def play(self, letters):
        tracker = self.tracker
        for letter in letters:
            if letter in "LX":
                owner = self.wrapped and tracker.own(self.iterator, "loader")
                tracker.fetch_started(self.now, LOADER, owner)
                if letter == "X":
                    tracker.exhausted(LOADER, owner)
            elif letter in "EY":
                tracker.fetch_started(self.now, OTHER, False)
                if letter == "Y":
                    tracker.exhausted(OTHER, False)
            elif letter in "B(":
                tracker.backward_depth += 1
            elif letter == "S":
                tracker.step()
            self.now += 10
            if letter in "B)":
                tracker.backward_depth -= 1
                tracker.backward_ended(self.now)
            elif letter in "OP":
                tracker.optimizer_stepped(ADAM if letter == "O" else SGD, self.now)
        return self

    def steps(self):
        self.tracker.close()
        assert all(record[0] == EventKind.STEP for record in self.records)
        assert [record[5] for record in self.records] == list(range(len(self.records)))
        return [(record[3], record[3] + record[4]) for record in self.records]


@pytest.mark.parametrize(
    ("letters", "steps"),
    [
        ("LBOLBOX", [(0, 30), (30, 60)]),
        ("LBLBOLBLBOX", [(0, 50), (50, 100)]),  # gradient accumulation
        ("LLBBOLLBBOX", [(0, 50), (50, 100)]),  # all micro-batches fetched first
        ("LBOBPLBOBPX", [(0, 50), (50, 100)]),  # two optimizers, two backward passes
        ("LBLBOX", [(0, 50)]),  # a skipped optimizer step joins the next
        ("L(O)L(O)X", [(0, 40), (40, 80)]),  # the optimizer runs inside the backward pass
        ("LBOEEYLBOX", [(0, 30), (60, 90)]),  # evaluation between steps belongs to no step
        ("LBOLBOXEEYLBOX", [(0, 30), (30, 60), (100, 130)]),
        ("LBOLB", [(0, 30)]),  # the cut step does not count
        # A loader that is exhausted before the training, which has none; the 8th optimizer step tells.
        ("EEY" + 11 * "BO", [(170, 190), (190, 210), (210, 230), (230, 250)]),
        ("LBOLBOXBOBOLBOLBOXBOBO", [(0, 30), (30, 60), (110, 140), (140, 170)]),  # optimizer steps behind an epoch
        ("BOBOBO", [(0, 20), (20, 40), (40, 60)]),  # no loader: the optimizer ends steps
        ("BOPBOPBOP", [(0, 30), (30, 60), (60, 90)]),
        ("BOBPBOBPBOBP", [(0, 40), (40, 80), (80, 120)]),  # two models trained in turn
        ("BOBOBPBOBOBPBOBOBP", [(0, 20), (20, 40), (40, 60), (60, 120), (120, 180)]),  # one of them twice as often
        ("(O)(O)", [(0, 30), (30, 60)]),
        ("", []),
    ],
)
def test_steps_are_inferred(letters, steps):
    loop = Loop().play(letters)
    assert loop.steps() == steps
    assert all(record[1] == EventFlag.INFERRED for record in loop.records)


def test_optimizer_that_ended_the_steps_and_is_gone_is_given_up():
    steps = Loop().play("BOBP" * 4 + "BO" * 200).steps()
    assert steps[:4] == [(0, 40), (40, 80), (80, 120), (120, 160)]
    assert 130 < len(steps) < 145
    assert all(end - start == 20 for start, end in steps[-100:])


def test_fetching_ahead_still_gives_one_step_per_update():
    assert len(Loop().play("L" + "LBO" * 5).steps()) == 4


def test_loop_without_any_torch_optimizer_is_cut_by_backward_passes():
    loop = Loop().play("LB" * 12 + "X")
    assert loop.steps()[-1] == (220, 240)
    assert loop.tracker.found_by == "backward pass"


@pytest.mark.parametrize(
    ("letters", "steps"),
    [
        ("LBOLBOX", [(0, 30), (30, 60)]),
        ("LLLLLLX", [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 60)]),
        ("LBOLBOXLBOX", [(0, 30), (30, 60), (70, 100)]),
        ("LBOEEYLBOX", [(0, 60), (60, 90)]),  # evaluation inside an iteration is part of it
        ("LBLBLBLBOX", [(0, 20), (20, 40), (40, 60), (60, 90)]),  # an iteration is a step unless step() is called
        ("LLX", [(0, 10), (10, 20)]),
    ],
)
def test_iterations_of_a_wrapped_loader_are_steps(letters, steps):
    loop = Loop(wrapped=True).play(letters)
    assert loop.steps() == steps
    assert all(record[1] == 0 for record in loop.records)
    assert loop.tracker.found_by == "wrapped loader"


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    ("letters", "steps"),
    [
        ("LBOSLBOSX", [(0, 30), (30, 70)]),
        ("LBLBOSLBLBOSX", [(0, 50), (50, 110)]),  # accumulation: no iteration before the first step() was recorded
        ("LBLBLBLBLBLBOSX", [(0, 130)]),
        ("LBOSXLBOSX", [(0, 30), (50, 80)]),  # the next epoch starts at its first fetch
        ("LBOSEEYLBOS", [(0, 30), (70, 100)]),
        ("LBOSLBXS", [(0, 30), (30, 70)]),  # a step ended after the loop
    ],
)
def test_step_alone_ends_steps_once_it_is_called(letters, steps, wrapped):
    loop = Loop(wrapped).play(letters)
    assert loop.steps() == steps
    assert loop.tracker.found_by == "step()"


def test_evaluation_before_step_is_inside_the_step():
    assert Loop(wrapped=True).play("LBOEEYSLBOEEYS").steps() == [(0, 60), (60, 130)]


def test_step_without_a_loader_counts_from_the_block():
    assert Loop().play("BOSBOS").steps() == [(0, 20), (20, 50)]


def test_break_after_the_update_keeps_the_step_and_before_it_does_not():
    loop = Loop(wrapped=True).play("LBOLBO")
    del loop.iterator
    gc.collect()
    assert loop.steps() == [(0, 30), (30, 60)]
    loop = Loop(wrapped=True).play("LBOLB")
    del loop.iterator
    gc.collect()
    assert loop.steps() == [(0, 30)]


def test_second_wrapped_loader_in_lockstep_does_not_add_steps():
    loop = Loop(wrapped=True).play("L")
    other = type("Iterator", (), {"source": "other"})()
    assert not loop.tracker.own(other, "other")
    assert loop.tracker.own(loop.iterator, "loader")


class Epochs(Loop):
    """Wrapped loaders one after another: each word is the iteration of one, named by its first letter."""

    def play_all(self, words):
        for word in words.split():
            source, *letters = word
            iterator = type("Iterator", (), {})()
            for letter in letters:
                if letter in "LX":
                    owner = self.tracker.own(iterator, source)
                    self.tracker.fetch_started(self.now, id(iterator), owner)
                    if letter == "X":
                        self.tracker.exhausted(id(iterator), owner)
                    self.now += 10
                else:
                    self.play(letter)
            del iterator  # as the loop leaves it
        return self

    def steps(self):
        self.tracker.close()
        return [(number, start, dur) for kind, _, _, start, dur, number in self.records if kind == EventKind.STEP]


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("tLBOLBOX vLLLX tLBOLBOX vLLLX", [0, 30, 110, 140]),
        ("tLBOLBOX vLL tLBOLBOX", [0, 30, 90, 120]),  # the evaluation is broken off
        ("tLBOLBOX vLLLX vLX wLLBX tLBOX", [0, 30, 140, 170]),  # what trains is a step
        ("tLBOX vLLX vLBOLBOX", [0, 70, 100]),  # evaluated first, then trained on
        ("aLBOX bLBOLBOX cLBLBOX", [0, 40, 70, 110, 130]),  # a loader for each epoch, accumulating in the last one
        ("aLBX bLBX cLLX", [0, 30, 60, 70]),  # no optimizer that torch shows
        ("aLLLLX bLLLX", [0, 10, 20, 30, 50, 60, 70]),  # not a torch loop: each iteration is one
    ],
)
def test_iterations_of_another_wrapped_loader_are_steps_once_it_trains(words, starts):
    steps = Epochs().play_all(words).steps()
    assert [number for number, _, _ in steps] == list(range(len(steps)))
    assert [start for _, start, _ in steps] == starts


def test_step_in_a_loader_that_may_train_nothing_ends_the_step_it_is_in():
    steps = Epochs().play_all("tLBOLBOX vLLS").steps()
    assert steps[-1] == (2, 80, 10)


def test_window_hears_of_every_step_also_of_the_first_on_another_loader():
    loop = Epochs().play_all("tLBOLBOX vLLLX uLBOX")
    assert [(number, start) for number, start, _ in loop.steps()] == [(0, 0), (1, 30), (2, 110)]
    heard_of_the_first = [("start", 1), ("end", 1), ("start", 2), ("cut",)]  # step() might have come before step 1
    assert loop.window == [
        *heard_of_the_first,
        ("start", 2),
        ("cut",),
        ("start", 2),
        ("end", 2),
        ("start", 3),
        ("cut",),
    ]


def test_a_source_whose_place_in_memory_is_used_again_is_another_one():
    class Reader:
        pass

    tracker = StepTracker(lambda _record: None)
    tracker.optimizer_seen = True
    places = set()
    for number in range(50):
        iterator, source = Reader(), Reader()
        places.add(id(source))
        assert tracker.own(iterator, source)
        tracker.fetch_started(number, id(iterator), True)
        if not number:
            tracker._held = None
        assert (tracker._doubted is None) is (number == 0)
        del iterator, source
    assert len(places) < 50


def test_loader_known_to_be_exhausted_starts_no_step():
    loop = Loop(wrapped=True).play("LBO")
    loop.tracker.fetch_started(loop.now, LOADER, True, more=False)
    loop.tracker.exhausted(LOADER, True)
    assert loop.steps() == [(0, 30)]
    assert ("cut",) not in loop.window


def test_window_sees_every_start_and_end_in_order():
    loop = Loop().play("LBOLBOX")
    assert loop.window == [("start", 0), ("end", 0), ("start", 1), ("end", 1), ("start", 2), ("cut",)]
