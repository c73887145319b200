import sys
import types

import pytest

from profilerkit.capture.patches import Patches, Watch, Watches


class _Watch(Watch):
    name = "example"

    def __init__(self, needs: tuple[str, ...] = (), fails: bool = False) -> None:
        self.needs = needs
        self.calls: list[str] = []
        self._fails = fails

    def install(self, patches: Patches) -> None:
        self.calls.append("install")
        patches.on_remove(lambda: self.calls.append("undone"))

    def beat(self) -> None:
        self.calls.append("beat")
        if self._fails:
            raise ValueError("broken")

    def close(self) -> None:
        self.calls.append("close")

    def reason(self) -> str:
        return "nothing was seen"


def test_a_watch_lives_from_the_import_of_its_module_to_the_end(monkeypatch):
    watch = _Watch(needs=("a_module_of_the_user",))
    watches = Watches([watch])
    watches.install()
    watches.beat()
    assert watch.calls == []
    assert watches.reasons() == {"example": "a_module_of_the_user was not imported"}

    monkeypatch.setitem(sys.modules, "a_module_of_the_user", types.ModuleType("a_module_of_the_user"))
    watches.install()
    watches.install()
    watches.beat()
    watches.patches.remove()
    watches.close()
    assert watch.calls == ["install", "beat", "undone", "close"]
    assert watches.reasons() == {"example": "nothing was seen"}


def test_a_watch_that_fails_ends_alone():
    broken, sound = _Watch(fails=True), _Watch()
    broken.name = "broken"
    watches = Watches([broken, sound])
    watches.install()
    with pytest.warns(RuntimeWarning, match="watch on broken switched itself off"):
        watches.beat()
    watches.beat()
    watches.close()
    assert broken.calls == ["install", "beat"]
    assert sound.calls == ["install", "beat", "beat", "close"]
    assert watches.reasons()["broken"].startswith("ValueError")


def test_nothing_is_installed_after_the_end(monkeypatch):
    watch = _Watch(needs=("a_module_of_the_user",))
    watches = Watches([watch])
    watches.patches.remove()
    monkeypatch.setitem(sys.modules, "a_module_of_the_user", types.ModuleType("a_module_of_the_user"))
    watches.install()
    assert watch.calls == []


def test_a_patch_below_another_one_stays():
    owner = types.SimpleNamespace(name="original")
    patches = Patches()
    patches.apply(lambda them: them.patch(owner, "name", lambda original: f"ours over {original}"))
    assert owner.name == "ours over original"
    owner.name = "theirs"
    patches.remove()
    assert owner.name == "theirs"
