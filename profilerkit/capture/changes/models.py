"""Change the models that a program calls: their precision, their memory format, and whether they are compiled."""

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakSet

from profilerkit.capture.changes.making import SETTLED, Changes
from profilerkit.capture.guard import tried
from profilerkit.capture.timed_calls import not_compiled


def called(module: Any) -> Callable[..., Any]:
    """Call the module from a function of ours: torch.compile skips a frame of torch's own, as of a bare Sequential."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


class _Models:
    """Finds the outermost modules that a program calls, in its first steps, and changes each once.

    A change is made to the module itself, and undone with the patches.
    """

    def __init__(self, changes: Changes, wanted: dict[str, Any]) -> None:
        self._changes, self._wanted = changes, wanted
        self._seen: WeakSet[Any] = WeakSet()
        self._searches = True

    def install(self) -> None:
        """Look at each call of a module that no other one makes."""
        module = sys.modules["torch"].nn.Module
        self._original = original = module.__call__
        models = self

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # torch.profiler takes the module out of this name
            module.__call__ = original  # what it calls is not looked at, nor followed by torch.compile
            try:
                is_new = self not in models._seen and tried(models._is_model, self)[0]
                if is_new:
                    models._seen.add(self)
                    return models._first(self, args, kwargs)
                return original(self, *args, **kwargs)
            finally:
                if models._searches:
                    module.__call__ = call

        def stop() -> None:
            self._searches = False
            if module.__call__ is call:
                module.__call__ = original

        module.__call__ = not_compiled(functools.update_wrapper(call, original))
        if "channels_last" in self._wanted:
            self._changes.in_calls(sys.modules["torch"].nn.parallel.DistributedDataParallel, {}, _before_buckets)
        self._changes.at_step(SETTLED, stop)
        self._changes.patches.on_remove(stop)

    @staticmethod
    def _is_model(module: Any) -> bool:
        return next(iter(module.parameters()), None) is not None

    def _first(self, module: Any, args: Any, kwargs: Any) -> Any:
        """The first call of a module: with the changes."""
        changes, wanted = self._changes, self._wanted
        if "channels_last" in wanted:
            changes.attempt("channels_last", self._channels_last, module)
        if "autocast" in wanted:
            changes.attempt("autocast", self._autocast, module, wanted["autocast"])
        if "compile" not in wanted or not changes.attempt("compile", self._compile, module, wanted["compile"]):
            return self._original(module, *args, **kwargs)
        from torch._dynamo.utils import counters

        counted = counters["stats"]
        graphs = counted["unique_graphs"]
        found, why = tried(lambda: (self._original(module, *args, **kwargs),))
        if found is not None:
            if counted["unique_graphs"] > graphs:
                changes.found("compile")
            else:
                changes.refuse("compile", "torch.compile compiled nothing of the model")
            return found[0]
        changes.refuse("compile", why)
        module._compiled_call_impl = None
        return self._original(module, *args, **kwargs)

    def _compile(self, module: Any, mode: str | bool) -> str | None:
        """Have the module compiled in its place by its next call."""
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if module._compiled_call_impl is not None or (dynamo and isinstance(module, dynamo.OptimizedModule)):
            return "the model is compiled already"
        made = sys.modules["torch"].compile(called(module), mode=None if mode in (True, "default") else mode)
        module._compiled_call_impl = made
        self._changes.patches.on_remove(lambda: setattr(module, "_compiled_call_impl", None))
        return None

    def _channels_last(self, module: Any) -> str | None:
        torch = sys.modules["torch"]
        images = [one for one in module.parameters() if one.dim() == 4]
        if all(one.is_contiguous(memory_format=torch.channels_last) for one in images):
            return "the model is channels_last already" if images else "the model has no 4-D parameters"
        module.to(memory_format=torch.channels_last)

        def convert(value: Any) -> Any:
            is_image = issubclass(type(value), torch.Tensor) and value.dim() == 4
            return value.contiguous(memory_format=torch.channels_last) if is_image else value

        def make(forward: Callable[..., Any]) -> Callable[..., Any]:
            def converted(*args: Any, **kwargs: Any) -> Any:
                return forward(*map(convert, args), **{name: convert(one) for name, one in kwargs.items()})

            return converted

        self._around(module, make)
        self._changes.patches.on_remove(lambda: module.to(memory_format=torch.contiguous_format))
        self._changes.found("channels_last")
        return None

    def _autocast(self, module: Any, dtype: str) -> str | None:
        torch = sys.modules["torch"]
        kind = next(iter(module.parameters()))
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        if kind.dtype != torch.float32:
            return f"the model's parameters are {kind.dtype}".replace("torch.", "")
        if torch.is_autocast_enabled(kind.device.type):
            return "autocast is on already"
        plain = functools.partial(
            sys.modules["torch.utils._pytree"].tree_map_only,
            torch.Tensor,
            lambda value: value.float() if value.dtype in (torch.bfloat16, torch.float16) else value,
        )

        def make(forward: Callable[..., Any]) -> Callable[..., Any]:
            def cast(*args: Any, **kwargs: Any) -> Any:
                with torch.autocast(kind.device.type, half):
                    found = forward(*args, **kwargs)
                return plain(found)

            return cast

        self._around(module, make)
        self._changes.found("autocast")
        return None

    def _around(self, module: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put something around the forward pass of this module, and of copies of it."""
        before = module.__dict__.get("forward")
        plain = type(module).forward if before is None else getattr(before, "__func__", None)

        @functools.wraps(plain or before)
        def forward(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return make(MethodType(plain, owner) if plain is not None else before)(*args, **kwargs)

        def undo() -> None:
            module.__dict__.pop("forward", None)
            if before is not None:
                module.forward = before

        module.forward = MethodType(forward, module)
        self._changes.patches.on_remove(undo)


def _before_buckets(given: dict[str, Any], _values: dict[str, Any]) -> None:
    """Give a model its memory format before ``DistributedDataParallel`` lays out gradients by it."""
    given["module"].to(memory_format=sys.modules["torch"].channels_last)


def models(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change the outermost modules that have parameters."""
    _Models(changes, wanted).install()


def compile_dynamic(changes: Changes, wanted: dict[str, Any]) -> None:
    """Change whether ``torch.compile`` assumes dynamic shapes."""
    dynamic = {"dynamic": wanted["compile_dynamic"]}
    changes.in_calls(sys.modules["torch"], dynamic, name="compile", setting="compile_dynamic")


def no_recompute(changes: Changes, _wanted: dict[str, Any]) -> None:
    """Keep activations that the program would compute again."""
    import torch.utils.checkpoint as module

    own = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not changes.patches.armed:
                return original(function, *args, **kwargs)
            changes.found("checkpointing", once=True)
            return function(*args, **{name: value for name, value in kwargs.items() if name not in own})

        return checkpoint

    changes.patches.patch(module, "checkpoint", make)
