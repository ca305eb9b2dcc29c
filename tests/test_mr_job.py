"""Building jobs: plans, parameters, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from mapreduce import BadJob, Dataset, Stage, job
from mapreduce.inputs import Source
from mapreduce.signatures import inject
from mapreduce.stages import Job, plan


def text() -> Dataset:
    return Dataset(source=Source(urls=("a.txt",)))


def words(offset, line):
    for word in line.split():
        yield word, 1


def titles(result: Dataset) -> list[str]:
    return [made.stage.title for made in plan(result) if made.stage is not None]


def test_a_plan_lists_each_stage_once_and_after_its_inputs() -> None:
    shared = Stage(name="shared")(text())
    left, right = Stage(name="left")(shared), Stage(name="right")(shared)
    assert titles(Stage(name="both")(left, right)) == ["shared", "left", "right", "both"]


def test_a_side_dataset_is_made_before_the_stage_that_sees_it() -> None:
    cuts = Stage(name="cuts")(text())
    assert titles(Stage(name="sort", side={"cuts": cuts, "plain": 3})(text())) == ["cuts", "sort"]


def test_a_sampled_view_is_the_same_computation() -> None:
    made = Stage(name="made")(text())
    assert titles(Stage(name="use", side={"cuts": Stage(name="cuts")(made.sample(8))})(made)) == [
        "made", "cuts", "use",
    ]  # fmt: skip


def test_a_chain_of_ten_thousand_stages_can_be_planned() -> None:
    dataset = text()
    for _ in range(10_000):
        dataset = Stage(name="again")(dataset)
    assert len(plan(dataset)) == 10_000


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"map": words, "partitions": 0}, "stage 'words': partitions must be >= 1, got 0"),
        ({"map": words, "map_batch": words}, "not both"),
        ({"map": words, "combine": words}, "combine needs a reduce"),
        ({"map": 3}, "3 is no function"),
        ({"map": lambda k, v, *, colour: []}, "asks for the keyword 'colour'"),
        ({"map_batch": words, "keys": ["a"], "aggregate": {"n": "mode"}}, "got 'mode'"),
        ({"map_batch": words, "reduce": words}, "reduce belongs to record stages"),
        ({"map_batch": words, "aggregate": {"n": "sum"}}, "need the key columns"),
        ({"reduce": words, "group": 0}, "group must be >= 1, got 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused_when_the_stage_is_built(parts: dict, complaint: str) -> None:
    with pytest.raises(BadJob, match=complaint.replace("(", r"\(")):
        Stage(**parts)


def test_a_stage_with_a_map_per_input_refuses_another_number_of_inputs() -> None:
    with pytest.raises(BadJob, match="has 2 maps, one per input, but got 1"):
        Stage(map=[words, words])(text())


def test_a_stage_refuses_what_is_no_dataset() -> None:
    with pytest.raises(BadJob, match="takes datasets, got str"):
        Stage(map=words)("a.txt")  # type: ignore[arg-type]


@job
def sample(text, *, n: int = 10, ratio: float = 0.5, loud: bool = False, name: str = "x"):
    """A job with every kind of parameter."""
    assert (n, ratio, loud, name) == (3, 0.25, True, "y")
    return Stage(map=words)(text)


def test_parameters_come_as_text_and_arrive_as_their_types() -> None:
    given = {"n": "3", "ratio": "0.25", "loud": "yes", "name": "y"}
    assert isinstance(sample.build([text()], given), Dataset)


def test_a_parameter_of_several_types_takes_the_first_that_fits() -> None:
    seen = {}

    @job
    def several(
        text, *, n: int | float = 1, flag: bool | None = None, rate: float | None = None, to: int | str = 0
    ):
        seen.update(n=n, flag=flag, rate=rate, to=to)
        return Stage(map=words)(text)

    several.build([text()], {"n": "0.5", "flag": "no", "rate": "2", "to": "end"})
    assert seen == {"n": 0.5, "flag": False, "rate": 2.0, "to": "end"}
    several.build([text()], {"n": "3"})
    assert seen == {"n": 3, "flag": None, "rate": None, "to": 0}
    with pytest.raises(BadJob, match=r"flag must be of type bool \| None, got 'maybe'"):
        several.build([text()], {"flag": "maybe"})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"n": "many"}, "parameter n must be of type int, got 'many'"),
        ({"loud": "perhaps"}, "parameter loud must be of type bool, got 'perhaps'"),
        ({"m": "1"}, "has no parameter 'm'; it has: n, ratio, loud, name"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_was_found_and_wanted(given: dict, complaint: str) -> None:
    with pytest.raises(BadJob, match=complaint):
        sample.build([text()], given)


def test_a_stage_says_in_one_line_what_it_was_given() -> None:
    made = Stage(name="count", map=words, reduce=sum, side={"cuts": list(range(1000))}, partitions=2)
    assert repr(made) == "Stage(name='count', map=words, reduce=sum, partitions=2, side={cuts})"
    assert repr(Stage(map=[words, words], reduce=max)) == "Stage(map=[words, words], reduce=max)"


def test_a_missing_parameter_and_a_missing_input_are_named() -> None:
    def needs(left, right, *, on: int):
        return Stage(map=words)(left, right)

    with pytest.raises(BadJob, match="needs the parameter 'on'; give -p on=VALUE"):
        job(needs).build([text(), text()], {})
    with pytest.raises(BadJob, match=r"takes 2 inputs \(left, right\), got 1"):
        job(needs).build([text()], {"on": 1})


def test_a_job_called_inside_another_is_part_of_its_plan() -> None:
    counted = Job(function=lambda t: Stage(name="inner")(t), name="inner", doc="")
    assert titles(Stage(name="outer")(counted(text()))) == ["inner", "outer"]


def test_injection_gives_a_function_what_it_names_and_nothing_else() -> None:
    def wants(key, value, *, side):
        return side

    assert inject(wants, {"side": 5, "task": 6})(1, 2) == 5
    assert inject(words, {"side": 5}) is words
