"""`Part`, `part_from` and how a bad value is worded; `Registry` and the errors for unknown names."""

import pytest
from pydantic import Field, PositiveInt

from hpctrain.errors import UserError, unknown_name
from hpctrain.options import Part, known_keys, part_from, spec_of
from hpctrain.registry import Registry


class Inner(Part):
    depth: int = Field(1, ge=1)


class Outer(Part):
    size: int | list[int] = 1
    mode: float | None = Field(None, gt=0)
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    stride: PositiveInt | tuple[PositiveInt, ...] = 1


FAMILY = Registry("shape", {"outer": Outer, "inner": Inner, "lazy": "collections:OrderedDict"})


def message(options: dict, where: str = "box") -> str:
    with pytest.raises(UserError) as caught:
        Outer.checked(options, where)
    return caught.value.message


def test_every_finding_has_a_line_with_key_value_and_what_is_allowed():
    assert message({"mode": -1, "inner": {"depth": 0}}).splitlines() == [
        "box.mode = -1: must be greater than 0",
        "box.inner.depth = 0: must be greater than or equal to 1",
    ]


def test_a_value_that_fits_no_member_of_a_union_is_one_finding():
    assert message({"size": "x"}) == (
        "box.size = 'x': must be a whole number, unable to parse string as an integer, or must be a list"
    )
    assert message({"stride": 0}) == "box.stride = 0: must be greater than 0, or must be a list"
    assert message({"stride": [2, -1]}) == "box.stride.1 = -1: must be greater than 0"


def test_a_number_in_quotes_is_text():
    assert message({"mode": "0.5"}) == "box.mode = '0.5': must be a number, without quotes"
    assert message({"stride": [1, "2"]}) == "box.stride = [1, '2']: each must be a whole number, without quotes"
    assert message({"inner": {"depth": "3"}}) == "box.inner.depth = '3': must be a whole number, without quotes"


def test_unknown_keys_at_any_depth():
    assert message({"mod": 1}) == "unknown key 'box.mod': did you mean 'mode'?"
    assert message({"inner": {"zz": 1}}) == "unknown key 'box.inner.zz': known keys: depth"
    assert message({"many": [{}, {"dept": 1}]}) == "unknown key 'box.many.1.dept': did you mean 'depth'?"


def test_known_keys():
    assert known_keys(Outer, []) == ["size", "mode", "inner", "many", "stride"]
    assert known_keys(Outer, ["inner"]) == known_keys(Outer, ["many", "3"]) == ["depth"]
    assert known_keys(Outer, ["mode"]) == []


def test_part_from_names_and_tables_and_back():
    part = part_from(FAMILY, {"name": "inner", "depth": 3}, "x")
    assert part == Inner(depth=3)
    assert part_from(FAMILY, part, "x") is part
    assert part_from(FAMILY, "inner", "x") == Inner()
    assert part_from(FAMILY, {"type": "inner"}, "x", key="type") == Inner()
    assert spec_of(FAMILY, part) == {"name": "inner", "depth": 3}
    assert spec_of(FAMILY, Outer(), key="type") == {"type": "outer", "size": 1, "many": [], "stride": 1}


@pytest.mark.parametrize("spec", [3, None, {}, {"name": 3}, ["inner"]])
def test_part_from_what_names_no_part(spec: object):
    with pytest.raises(UserError) as caught:
        part_from(FAMILY, spec, "a.b")
    for text in ("a.b must name a known shape", repr(spec), "inner, lazy, outer"):
        assert text in caught.value.message


def test_unknown_part_names_its_key_and_the_known():
    with pytest.raises(UserError, match="unknown shape 'iner' in a.b") as caught:
        part_from(FAMILY, "iner", "a.b")
    assert "inner, lazy, outer" in caught.value.message
    assert "did you mean 'inner'?" in caught.value.message
    assert "use one of these" in unknown_name("shape", "xyz", FAMILY).message
    assert "did you mean 'accuracy'?" in unknown_name("metric", "acc", ["auc", "accuracy"]).message


def test_registry_finds_names_without_loading_the_others():
    family = Registry("shape", {"broken": "no_such_module:Thing", "inner": f"{__name__}:Inner", "own": Outer})
    assert family.name_of(Inner) == "inner"
    assert family.name_of(Outer) == "own"
    with pytest.raises(ValueError, match="int is not a registered shape"):
        family.name_of(int)
    with pytest.raises(ValueError, match="registered already"):
        family.register("own", Inner)
