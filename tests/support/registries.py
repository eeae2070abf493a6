"""Registries with less in them, for the length of a test."""


def leave_only(monkeypatch, registry, *names):
    """Take everything out but some names; undone, all entries are back in their order, which reports follow."""
    kept = {name: registry[name] for name in names}
    for name in reversed(list(registry)):
        monkeypatch.delitem(registry, name)
    for name, entry in kept.items():
        monkeypatch.setitem(registry, name, entry)
