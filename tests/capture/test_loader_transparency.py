"""Every kind of loader behaves the same wrapped and bare, and yields the same batches."""

import collections.abc
import copy
import gc
import importlib
import inspect
import operator
import pickle
import types
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
data = torch.utils.data

pytestmark = [
    pytest.mark.torch,
    # torch on forks of a process with threads, on what cannot be pickled; lightning 2.6.6 on torch's own trees.
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning", "FutureWarning")),
]


class Numbers(data.Dataset):
    """Map-style; ``set_epoch`` shifts what it gives; item ``bad`` raises."""

    def __init__(self, bad=None):
        self.epoch, self.bad = 0, bad

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.bad:
            raise LookupError("no such sample")
        return torch.tensor(index + 100 * self.epoch)


class Stream(data.IterableDataset):
    def __init__(self, bad=None):
        self.epoch, self.bad = 0, bad

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for index in range(12):
            if index == self.bad:
                raise LookupError("no such sample")
            yield torch.tensor(index + 100 * self.epoch)


class Resumable(data.DataLoader):
    """As torchdata's StatefulDataLoader: iterators of its own, and a state in the middle of an epoch."""

    _skip = _given = 0

    def __iter__(self):
        batches = super().__iter__()
        skip, self._skip = self._skip, 0
        self._given = skip
        for number, batch in enumerate(batches):
            if number >= skip:
                self._given = number + 1
                yield batch

    def state_dict(self):
        return {"given": self._given}

    def load_state_dict(self, state):
        self._skip = state["given"]


class OnlyIter:
    """Two methods and no length."""

    def __init__(self, bad=None):
        self.dataset = Stream(bad)

    def __iter__(self):
        return (sample.reshape(1) for sample in self.dataset)


class OnlyItems:
    """The old sequence protocol, without ``__iter__``."""

    def __init__(self, bad=None):
        self.dataset = Numbers(bad)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index >= 4:
            raise IndexError(index)
        return self.dataset[index]


def generator(bad=None):
    yield from Stream(bad)


def distributed(bad=None):
    dataset = Numbers(bad)
    sampler = data.DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=True)
    return data.DataLoader(dataset, batch_size=2, sampler=sampler)


def torchdata_loader(bad=None):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    return stateful.StatefulDataLoader(Numbers(bad), batch_size=3)


def accelerate_shard(bad=None):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    return accelerate.data_loader.DataLoaderShard(Numbers(bad), batch_size=3)


def lightning_combined(bad=None):
    pytest.importorskip("lightning", reason="lightning is not installed")
    combined = importlib.import_module("lightning.pytorch.utilities.combined_loader").CombinedLoader
    loaders = {"a": data.DataLoader(Numbers(bad), batch_size=3), "b": data.DataLoader(Numbers(), batch_size=2)}
    return combined(loaders, "min_size")


def map_style(bad=None, **settings):
    return data.DataLoader(Numbers(bad), batch_size=3, **settings)


KINDS = {
    "map-style": map_style,
    "map-style, fork": lambda bad=None: map_style(bad, num_workers=2, multiprocessing_context="fork"),
    "map-style, persistent": lambda bad=None: map_style(
        bad, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    ),
    "iterable-style": lambda bad=None: data.DataLoader(Stream(bad), batch_size=3),
    "batch_size=None": lambda bad=None: data.DataLoader(Numbers(bad), batch_size=None),
    "distributed sampler": distributed,
    "resumable": lambda bad=None: Resumable(Numbers(bad), batch_size=3),
    "torchdata": torchdata_loader,
    "accelerate": accelerate_shard,
    "lightning": lightning_combined,
    "only __iter__": OnlyIter,
    "only __getitem__": OnlyItems,
    "list": lambda bad=None: [torch.tensor(number) for number in range(4)],
    "range": lambda bad=None: range(4),
    "generator": generator,
    "iterator": lambda bad=None: iter([torch.tensor(number) for number in range(4)]),
}
#: Starting interpreters takes seconds: one behaviour for all.
SLOW = {"spawn": lambda bad=None: map_style(bad, num_workers=1, multiprocessing_context="spawn")}


def plain(value):
    """Batches as something that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def outcome(work, *args):
    """What ``work`` gives, or the type and the first line of what it raises."""
    try:
        return plain(work(*args))
    except Exception as error:  # noqa: BLE001  what is raised is compared
        return type(error), str(error).splitlines()[:1]


def lengths(loader):
    return [outcome(len, loader), bool(loader), isinstance(loader, collections.abc.Sized)]


def attributes(loader):
    names = ("batch_size", "num_workers", "drop_last", "pin_memory", "prefetch_factor", "nothing")
    kinds = ("dataset", "sampler", "batch_sampler", "collate_fn", "generator")
    asked = ("__len__", "__getitem__", "__next__", "state_dict", "set_epoch", "flattened", "__reversed__")
    return [
        [outcome(getattr, loader, name) for name in names],
        [type(getattr(loader, name, None)) for name in kinds],
        [hasattr(loader, name) for name in asked],
        sorted(name for name in dir(loader) if not name.startswith("_")),
    ]


def setting_an_attribute(loader):
    said = outcome(setattr, loader, "tag", 7)
    read = outcome(getattr, loader, "tag")
    return said, read, outcome(delattr, loader, "tag"), hasattr(loader, "tag")


def types_that_are_asked_for(loader):
    asked = (data.DataLoader, list, range, types.GeneratorType, collections.abc.Sequence, collections.abc.Iterator)
    return [
        [isinstance(loader, kind) for kind in asked],
        loader.__class__,
        inspect.isgenerator(loader),
        callable(loader),
    ]


def first_epoch(loader):
    return list(loader)


def two_epochs(loader):
    return [list(loader), list(loader)]


def epochs_that_are_set(loader):
    out = []
    for epoch in range(2):
        for part in (getattr(loader, "sampler", None), getattr(loader, "dataset", None), loader):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        out.append(list(loader))
    return out


def leaving_early(loader):
    out = []
    for number, batch in enumerate(loader):
        out.append(batch)
        if number == 1:
            break
    return [out, list(loader)]


def resuming(loader):
    """The state in the middle of an epoch, and what follows from it."""
    if not hasattr(loader, "state_dict"):
        return outcome(getattr, loader, "state_dict")
    iterator = iter(loader)
    begun = [next(iterator), next(iterator)]
    state = loader.state_dict()
    del iterator
    loader.load_state_dict(state)
    return [begun, list(loader), list(loader)]


def iterating_by_hand(loader):
    iterator = iter(loader)
    out = [iter(iterator) is iterator, next(iterator), next(iterator, None), list(iterator)]
    return [*out, next(iterator, "empty"), outcome(next, iterator)]


def iterator_itself(loader):
    iterator = iter(loader)
    asked = ("send", "close", "__len__", "_num_yielded")
    return iterator.__class__, [hasattr(iterator, name) for name in asked], outcome(len, iterator)


def items(loader):
    return [
        outcome(lambda: loader[1]),
        outcome(lambda: loader["a"]),
        outcome(lambda: list(reversed(loader))),
        outcome(lambda: loader == loader),
    ]


def operators(loader):
    pairs = [(operator.add, loader, [7]), (operator.add, [7], loader), (operator.mul, 2, loader)]
    compared = [(operator.ne, loader, loader), (operator.lt, loader, [9]), (operator.ge, [9], loader)]
    return [outcome(*pair) for pair in (*pairs, *compared, (operator.or_, loader, {}), (operator.neg, loader))]


def copies(loader):
    shallow = outcome(lambda: list(copy.copy(loader)))
    deep = outcome(lambda: list(copy.deepcopy(loader)))
    return shallow, deep, outcome(lambda: list(pickle.loads(pickle.dumps(loader))))


BEHAVIOURS = [
    lengths,
    attributes,
    setting_an_attribute,
    types_that_are_asked_for,
    first_epoch,
    two_epochs,
    epochs_that_are_set,
    leaving_early,
    resuming,
    iterating_by_hand,
    iterator_itself,
    items,
    operators,
    copies,
]


@pytest.fixture(autouse=True)
def _quick():
    torch.set_num_threads(1)


def seen(behaviour, make, wrap=lambda loader: loader):
    torch.manual_seed(3)
    loader = make()
    return outcome(lambda: behaviour(wrap(loader)))


def all_seen(kind, wrap=lambda loader: loader):
    return {behaviour.__name__: seen(behaviour, KINDS[kind], wrap) for behaviour in BEHAVIOURS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_is_itself_in_a_block_wrapped_or_not(light, recorded, kind):
    bare = all_seen(kind)
    with light() as prof:
        assert all_seen(kind) == bare
        assert all_seen(kind, prof.wrap) == bare
    assert recorded(prof.directory).rank.end.reason == "finished"


# Torch itself waits 5 s for each forked worker to end after an exception.
@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("list", "range", "iterator", "map-style, persistent")])
def test_an_exception_of_the_dataset_is_the_same(light, kind, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)

    def batches_until_it_raises(loader):
        out = []
        try:
            out.extend(loader)
        except LookupError as error:
            out.append(str(error).splitlines()[-1])
        return out

    def make():
        return KINDS[kind](bad=1 if kind == "only __getitem__" else 4)

    bare = seen(batches_until_it_raises, make)
    assert "no such sample" in str(bare)
    with light() as prof:
        assert seen(batches_until_it_raises, make, prof.wrap) == bare


def test_spawned_workers_give_the_same_batches(light):
    bare = seen(first_epoch, SLOW["spawn"])
    with light() as prof:
        assert seen(first_epoch, SLOW["spawn"], prof.wrap) == bare


@pytest.mark.parametrize("wrap", [True, False])
def test_workers_start_with_the_iterator_and_stay_if_they_are_persistent(light, wrap):
    with light() as prof:
        loader = KINDS["map-style, persistent"]()
        iterator = iter(prof.wrap(loader) if wrap else loader)
        first = [worker.pid for worker in loader._iterator._workers]
        assert len(first) == 2
        list(iterator)
        list(prof.wrap(loader) if wrap else loader)
        assert [worker.pid for worker in loader._iterator._workers] == first


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "fork" not in kind])
def test_each_batch_of_a_wrapped_loader_is_a_step(light, recorded, kind):
    with light() as prof:
        count = sum(1 for _ in prof.wrap(KINDS[kind]()))
    run = recorded(prof.directory)
    assert len(run.steps) == count
    assert run.rank.meta.steps_found_by == "wrapped loader"


def test_an_epoch_left_early_with_persistent_workers_ends_its_last_step(toy, light, recorded):
    with light() as prof:
        loader = prof.wrap(toy.loader(num_workers=1, persistent_workers=True, multiprocessing_context="fork"))
        for number, batch in enumerate(loader):
            toy.train(batch)
            if number == 2:
                break
        for batch in loader:
            toy.train(batch)
    assert len(recorded(prof.directory).steps) == 3 + 8


@pytest.mark.parametrize("wrap", [True, False])
def test_a_loader_dies_with_its_last_name(toy, light, wrap):
    """Its persistent workers, which it holds through its iterator, would live on until a collection of garbage."""
    with light() as prof:
        loader = toy.torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
        gone = weakref.ref(loader)
        gc.disable()
        try:
            for _batch in prof.wrap(loader) if wrap else loader:
                pass
            del loader
            assert gone() is None
        finally:
            gc.enable()


class Pipe:
    """Stages are joined by operators, as a data pipeline's are."""

    def __init__(self, *stages):
        self.stages = stages

    def __iter__(self):
        return iter(self.stages)

    def __rshift__(self, stage):
        return Pipe(*self.stages, stage)

    def __ror__(self, source):
        return Pipe(source, *self.stages)

    def __ilshift__(self, stage):
        self.stages += (stage,)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass


def test_operators_of_a_wrapped_loader_are_those_of_its_type(light):
    with light() as prof:
        joined = 0 | (prof.wrap(Pipe(1)) >> 2)
        assert joined.stages == (0, 1, 2)
        assert (prof.wrap({1: 2}) | {3: 4}, {3: 4} | prof.wrap({1: 2})) == ({1: 2, 3: 4}, {3: 4, 1: 2})
        assert prof.wrap([1]) + prof.wrap([2]) == [1, 2]
        with pytest.raises(TypeError, match="unsupported operand type"):
            prof.wrap(Pipe(1)) + 1


def test_a_wrapped_loader_that_gives_itself_stays_wrapped(light, recorded):
    with light() as prof:
        pipe = loader = prof.wrap(Pipe(1))
        loader <<= 2
        with loader as entered:
            assert list(entered) == [1, 2]
        assert entered is loader is pipe
    assert len(recorded(prof.directory).waits) == 3


@pytest.mark.parametrize("iterable", [True, False])
def test_a_class_of_the_users_dies_with_what_it_closes_over(light, iterable):
    """A loader's class is made in a function where it closes over its data."""

    def loader():
        samples = Numbers()

        class Local:
            __iter__ = (lambda self: iter([samples[0]])) if iterable else (lambda self: self)

            def __next__(self):
                raise StopIteration(samples)

        return Local(), weakref.ref(samples)

    with light() as prof:
        made, gone = loader()
        for _epoch in range(2):
            for _batch in prof.wrap(made):
                pass
        del made
        _batch = None
        gc.collect()
        assert gone() is None


def test_a_wrapped_loader_without_a_name_marks_steps(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(toy.loader(batches=4)):
            toy.train(batch)
    assert recorded(prof.directory).rank.meta.steps_found_by == "wrapped loader"


def test_a_warning_while_an_iterator_is_made_names_the_line_that_it_names_without_a_recording(light):
    """Torch warns of pin_memory=True on a machine without a device, with the line of the caller's caller."""

    def warned():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            iter(data.DataLoader(Numbers(), pin_memory=True))
            data.dataloader._SingleProcessDataLoaderIter(data.DataLoader(Numbers(), pin_memory=True))
        return [(str(entry.message), entry.filename, entry.lineno) for entry in caught]

    bare = warned()
    if not bare:
        pytest.skip("this torch (2.4, or one that has a device) does not warn")
    with light():
        recorded = warned()
    assert recorded == bare
