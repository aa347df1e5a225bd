"""What names of datasets tell: which are usually targets, which inputs, which neither."""

from __future__ import annotations

import re


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


TARGETS = _set(
    "label labels target targets y class classes truth answer answers output outputs annotation annotations category "
    "categories response outcome outcomes gt kind species"
)
INPUTS = _set(
    "x input inputs feature features image images img imgs data signal signals spectrum spectra sequence sequences "
    "volume volumes full jets events token tokens"
)
NEITHER = _set(
    "id ids uid index indices idx weight weights mask masks time times timestamp timestamps date run fold split name "
    "names filename filenames seed key keys offset offsets"
)
WEIGHTS = _set("w wt wgt weight weights")
GROUPS = _set(
    "patient patients subject subjects person persons participant participants individual animal donor user station "
    "site hospital household trajectory episode session experiment patientid subjectid personid userid"
)
_IDS = _set("id ids uid uuid guid rowid eventid sampleid objectid recordid caseid imageid fileid")
_NUMBERS = _set("id ids uid no nr num number code key index")
_OF_EXAMPLES = _set(
    "sample samples example examples event events row rows record instance item entry file start end stop train "
    "training test mc gen loss unix utc"
)
IMAGES = _set("image images img imgs picture pictures pixel pixels map maps photo photos frame frames")
RUNS = _set("run runs run_id runid series_id trajectory episode experiment subject")


def words(name: str) -> list[str]:
    """Return the words of one name in small letters: "yTrain_2" is y, train."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^A-Za-z]+", apart.lower()) if word]


def last(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def fits(path: str, known: frozenset[str]) -> int:
    """Return how well a path fits a set of words: 3 its last part is one, 2 a word of it, 1 a group above; 0 not."""
    *above, name = path.split("/")
    if name.lower() in known:
        return 3
    if any(word in known for word in words(name)):
        return 2
    return int(any(part.lower() in known for part in above))


def is_target(path: str) -> int:
    """Return how much a path sounds like targets, 0 to 3."""
    return fits(path, TARGETS)


def is_neither(path: str) -> bool:
    """Return whether a path sounds like what is no input: a number of the row, a group, a weight, a mask, a time."""
    found = words(last(path))
    # "start_time" and "sample_weight" are none, "refractive_index", "time_of_flight" and "body_weight" may be.
    says_so = any(word in NEITHER for word in found) and all(word in NEITHER | _OF_EXAMPLES for word in found)
    return says_so or is_id(path) or is_group(path) or is_mask(path)


def is_weight(path: str) -> bool:
    """Return whether a path sounds like weights of the examples: "w", "sample_weight"; not "body_weight"."""
    *before, word = words(last(path)) or [""]
    return word in WEIGHTS and all(word in _OF_EXAMPLES for word in before)


def is_mask(path: str) -> bool:
    """Return whether a path sounds like a mask."""
    return bool({"mask", "masks"} & set(words(last(path))))


def is_id(path: str) -> bool:
    """Return whether a path sounds like names or numbers of the examples."""
    return any(word in _IDS for word in words(last(path)))


def is_group(path: str) -> bool:
    """Return whether a path sounds like whom or what examples belong to: "patient", "subject_id"; not "patient_age"."""
    found = words(last(path))
    return any(word in GROUPS for word in found) and all(word in GROUPS | _NUMBERS for word in found)
