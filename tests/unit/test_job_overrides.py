"""`--set KEY=VALUE`."""

import pytest

from hpctrain.errors import UserError
from hpctrain.job.overrides import apply_overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3", 3),
        ("a = 0.5 ", 0.5),
        ("a=true", True),
        ('a="3"', "3"),
        ("a=word", "word"),
        ("a=10 min", "10 min"),
        ("a=/data/x.h5", "/data/x.h5"),
        ("a=part-*.h5", "part-*.h5"),
        ("a=x=y", "x=y"),
        ("a=2026-01-31", "2026-01-31"),  # a date in TOML, the name of a folder here
        ("a=007", "007"),
        ("a=[1, 'b']", [1, "b"]),
        ("a={b = 1}", {"b": 1}),
        ('a=""', ""),
        ("a=1\nb = 2", "1\nb = 2"),
    ],
)
def test_values_are_toml_or_text(text: str, value: object):
    assert apply_overrides({}, [text]) == {"a": value}


def test_nested_keys_are_made_and_the_document_is_left_alone():
    document = {"data": {"split": {"test": 0.1}}}
    changed = apply_overrides(document, ["data.split.test=0.2", "run.early_stop.patience=3"])
    assert changed == {"data": {"split": {"test": 0.2}}, "run": {"early_stop": {"patience": 3}}}
    assert document == {"data": {"split": {"test": 0.1}}}


def test_places_in_lists():
    document = {"model": {"layers": ["flatten", {"type": "dense", "units": 3}, "leaky_relu"]}}
    changes = ["model.layers.0=relu", "model.layers.1.units=64", "model.layers.2.slope=0.2"]
    assert apply_overrides(document, changes)["model"]["layers"] == [
        "relu",
        {"type": "dense", "units": 64},
        {"type": "leaky_relu", "slope": 0.2},
    ]


def test_bare_names_of_parts_open_up():
    changed = apply_overrides(
        {"optimizer": "sgd", "metrics": {"names": ["top_k"]}}, ["optimizer.lr=1", "metrics.names.0.k=2"]
    )
    assert changed == {"optimizer": {"name": "sgd", "lr": 1}, "metrics": {"names": [{"name": "top_k", "k": 2}]}}


def test_later_overrides_win():
    assert apply_overrides({}, ["a.b=1", "a.b=2", "a={c=3}", "a.d=4"]) == {"a": {"c": 3, "d": 4}}


def test_one_length_takes_the_place_of_the_other():
    assert apply_overrides({"run": {"epochs": 9}}, ["run.steps=5"]) == {"run": {"steps": 5}}
    assert apply_overrides({"run": {"steps": 9}}, ["run.epochs=5"]) == {"run": {"epochs": 5}}
    assert apply_overrides({"run": {}}, ["run.epochs=5", "run.steps=4"]) == {"run": {"epochs": 5, "steps": 4}}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lr", ["KEY=VALUE", "'lr'", "optimizer.lr=0.01"]),
        ("=3", ["KEY=VALUE"]),
        ("a..b=3", ["KEY=VALUE"]),
        ("a b=3", ["KEY=VALUE"]),
        ("a=", ["KEY=VALUE", '""']),
        ("a=[1,", ["not TOML", "'a=[1,'", "quotes"]),
        ("a={b: 1}", ["not TOML"]),
        ('a="open', ["not TOML"]),
        ("layers.2.units=1", ["layers is a list", "'2'", "layers.0 to layers.1"]),
        ("layers.-1.units=1", ["layers is a list"]),
        ("layers.units=1", ["layers is a list", "'units'"]),
        ("none.0=1", ["none is not a list", "not given", "none=[...]"]),
        ("empty.0=1", ["empty is a list", "empty=[...]"]),
        ("number.x=1", ["number has no keys of its own", "number = 3"]),
        ("text.x=1", ["text has no keys of its own", "text = 'abc'"]),
    ],
)
def test_malformed_overrides_are_explained(text: str, parts: list[str]):
    with pytest.raises(UserError) as caught:
        apply_overrides({"layers": [{}, {}], "empty": [], "number": 3, "text": "abc"}, [text])
    for part in parts:
        assert part in caught.value.message
