"""What a job with `run.reproducible` may not have, and what it takes by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import job_for, write_classes

from hpctrain import Job
from hpctrain.errors import UserError
from hpctrain.nn.fixed_point import Lanes
from hpctrain.run.lanes import check_order, lanes_of, rows_a_pass
from hpctrain.run.master import resolve

NORM = {"type": "batch_norm"}


def job(folder: Path, layers: tuple[Any, ...] = (), **sections: dict[str, Any]) -> Job:
    sections["run"] = {"reproducible": True, "global_batch": 60, **sections.get("run", {})}
    model = {"layers": [*layers, {"type": "dense", "units": 3}]}
    return Job.from_dict(job_for(write_classes(folder / "data.h5"), model=model, **sections))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"data": {"shuffle": "local"}}, "data.shuffle"),
        ({"schedule": {"name": "constant", "scale_with_workers": "linear"}}, "schedule.scale_with_workers"),
        ({"strategy": {"overlap": True}}, "strategy.overlap"),
        ({"strategy": {"compression": {"type": "int8"}}}, "strategy.compression"),
        ({"strategy": {"name": "sharded_optimizer"}, "optimizer": {"name": "lamb"}}, "strategy.name"),
    ],
)
def test_what_depends_on_the_number_of_ranks_is_refused_by_name(
    tmp_path: Path, sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=r"run\.reproducible promises") as error:
        job(tmp_path, **sections)
    assert f"found:   {named}" in error.value.message
    job(tmp_path, **sections, run={"reproducible": False})


def test_a_number_of_workers_that_is_given_counts_everywhere(tmp_path: Path) -> None:
    job(tmp_path, schedule={"name": "constant", "scale_with_workers": "linear", "workers": 4})


def test_statistics_over_all_ranks_are_refused_by_their_layer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="synchronised batch norm.*\n.*batch_norm0"):
        resolve(job(tmp_path, ({**NORM, "sync": True},)))


def test_too_many_lanes_are_refused_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="10000 lanes") as error:
        resolve(job(tmp_path, run={"global_batch": 10_000, "micro_batch": 1}))
    assert "run.micro_batch = 3 or more" in error.value.message


def test_lanes_are_an_eighth_of_the_batch_or_micro_batches(tmp_path: Path) -> None:
    assert lanes_of(resolve(job(tmp_path)).job) == Lanes(8, 8)
    assert lanes_of(resolve(job(tmp_path, (NORM,))).job) == Lanes(2, 32)
    accumulated = resolve(job(tmp_path, run={"micro_batch": 7, "accumulate": 3})).job
    assert lanes_of(accumulated) == Lanes(26, 7)
    assert [rows_a_pass(accumulated, ranks) for ranks in (1, 2, 4, 9, 100)] == [63, 35, 21, 7, 7]
    assert lanes_of(resolve(job(tmp_path, run={"reproducible": False})).job) is None


def test_an_order_that_only_some_world_sizes_take_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path)
    check_order(made, "global")
    with pytest.raises(UserError, match='data.shuffle = "global" needs all rows in memory'):
        check_order(made, "chunks")


def test_another_collective_may_go_on_with_a_run(tmp_path: Path) -> None:
    one, other = (job(tmp_path, strategy={"collective": name}) for name in ("ring", "window"))
    assert one.differences(other) == []
    plain = [job(tmp_path, strategy={"collective": name}, run={"reproducible": False}) for name in ("ring", "window")]
    assert len(plain[0].differences(plain[1])) == 1
    assert any("run.reproducible" in line for line in one.differences(plain[0]))
