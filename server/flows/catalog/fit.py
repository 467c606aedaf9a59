"""Which keys of a catalog file change with its checkpoint, which stay, and why.

What took the place of a part of the old checkpoint goes with it. Values follow the checkpoint where the two call for
different ones. Files that were made for weights of a kind, such as adapters, stay if the new one loads with them.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pipelines.checkpoints.classes.index import class_of, denoiser_name
from pipelines.checkpoints.inspection.findings import Inspection
from pipelines.checkpoints.inspection.suggestion import Setting, Suggestion
from server.catalog.images import ImageModel
from server.catalog.schema import PART_KEYS
from server.flows.catalog.edit import KeyInFile, SettingChange

NOISE: Final = "sampling.scheduler_config"
MADE_FOR_DENOISER: Final = ("runtime.loras", "runtime.lora_folder", "controlnets", "t2i_adapters", "ip_adapters")
MADE_FOR_WEIGHTS: Final = (*MADE_FOR_DENOISER, "runtime.embedding_folder")
REFUSABLE: Final = (*MADE_FOR_WEIGHTS, "runtime.cache", "sampling.scheduler", NOISE, "schedulers")  # by a load, by name
INDEPENDENT: Final = ("checkpoint", "family", "models", "enhance")  # and most of [runtime], which is of the device
ANY_KEY: Final = "|".join(map(re.escape, sorted(REFUSABLE, key=len, reverse=True)))
REFUSED: Final = re.compile(rf"(?:used: |; )((?:{ANY_KEY})(?:, (?:{ANY_KEY}))*)(?:\.\w+)?: (.+?)(?=; |$)", re.DOTALL)
SHOWN: Final = 200  # characters of a reason


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model's checkpoint and the one that comes, with the values that fit each. `folders` are `base` and `config`, as
    the catalog file has them now and as the new one needs them."""

    model: ImageModel
    old: Inspection
    new: Inspection
    before: Suggestion | None
    after: Suggestion
    folders: Mapping[str, tuple[str | None, str | None]]


def changed_values(compared: Comparison) -> list[SettingChange]:
    """Return the values that change: those for which the two checkpoints call for different ones. Values that were
    tuned for both stay."""
    model, before, after = compared.model, compared.before, compared.after
    spec = model.checkpoint
    fitted = before.values if before is not None else {}
    current: dict[str, Setting] = {
        "conditioning": spec.conditioning,
        "native_area_px": spec.native_area_px,
        "max_area_px": spec.max_area_px,
        "steps": model.steps,
        "sampling.guidance": spec.sampling.guidance,
        "sampling.scheduler": spec.sampling.scheduler,
        NOISE: dict(spec.sampling.scheduler_config) or None,
        "control_map": spec.own_map.name if spec.own_map is not None else None,
        **{key: now for key, (now, _) in compared.folders.items()},
        "enlarge": spec.enlarge,
    }
    changes = {key: value for key, value in after.values.items() if fitted.get(key) != value}
    wanted: dict[str, Setting] = {**changes, **{key: then for key, (_, then) in compared.folders.items()}}
    if NOISE in changes:
        wanted[NOISE] = _changed_config(fitted.get(NOISE), changes[NOISE], current[NOISE])
    if after.enlarge == "resize" or (before is not None and before.enlarge == "resize"):
        wanted["enlarge"] = after.enlarge  # one of the two has no second pass
    found = after.found
    return [
        SettingChange(key, current[key], new, found.get(key, ""), found.get(key, ""))
        for key, new in wanted.items()
        if current[key] != new
    ]


def _changed_config(before: Setting, after: Setting, current: Setting) -> Setting:
    """Merge a scheduler's config key by key: values of the old checkpoint go, values of the new one come, and the
    operator's own stay."""
    old, new, own = (dict(each) if isinstance(each, Mapping) else {} for each in (before, after, current))
    kept = {key: value for key, value in own.items() if key not in old or old[key] != value}
    return kept | new or None


def swapped_keys(
    file: Mapping[str, KeyInFile], compared: Comparison | None, refused: Mapping[str, str]
) -> list[SettingChange]:
    """Return what becomes of each key of a catalog file that has to do with its checkpoint. `refused` are the reasons
    of keys with which the new checkpoint did not load. Without a comparison, loading decides about most."""
    if compared is not None and compared.old.path == compared.new.path:
        return [*kept_keys(file, "the checkpoint is the same")]
    changes = changed_values(compared) if compared is not None else []
    outcomes = [each for each in changes if each.key not in refused]
    changed = {each.key for each in outcomes}
    for key, found in file.items():
        if key in changed or (key == "quality" and "steps" in changed):
            continue
        if (why := refused.get(key) or _why_dropped(key, found, compared)) is not None:
            outcomes.append(SettingChange(key, found.shown, None, why))
        elif _depends(key):
            outcomes.append(_stays(key, found, compared))
    return outcomes


def kept_keys(file: Mapping[str, KeyInFile], why: str) -> Iterator[SettingChange]:
    """Return that each key which has to do with the checkpoint stays, for one reason."""
    return (SettingChange(key, found.shown, found.shown, why) for key, found in file.items() if _depends(key))


def refused_keys(message: str, present: Collection[str]) -> dict[str, str]:
    """Return the keys that a refused load names, of those that are present, with what is to be said of each. Errors of
    loading begin with the key that they are about."""
    found: dict[str, str] = {}
    for keys, reason in REFUSED.findall(message):
        why = f"the new checkpoint does not load with it: {reason[:SHOWN]}"
        found |= {key: why for key in keys.split(", ") if key in present}
    return found


def stale_comments(file: Mapping[str, KeyInFile], compared: Comparison | None) -> set[str]:
    """Return the comments that speak of the old checkpoint: beside its name, and the notes with which it was added."""
    if compared is not None and compared.old.path == compared.new.path:
        return set()
    notes = compared.old.notes if compared is not None else ()
    beside = {file["checkpoint"].comment} if "checkpoint" in file else set()
    return {*beside, *(f"# {note[0].upper()}{note[1:]}." for note in notes)} - {""}


def _depends(key: str) -> bool:
    return key in REFUSABLE or not (key.partition(".")[0] == "runtime" or key in INDEPENDENT)


def _why_dropped(key: str, found: KeyInFile, compared: Comparison | None) -> str | None:
    if key in PART_KEYS:
        return "it took the place of a part of the old checkpoint, and the new one has its own"
    if key == "sheet" and compared is not None and compared.new.conditioning != "native":
        return "the new checkpoint redraws references, and would redraw the sheet"
    if key == "runtime.cache" and "mag_ratios" in found.shown:
        return "its ratios were measured with the old checkpoint"
    if key in MADE_FOR_DENOISER and compared is not None:
        old, new = (_denoiser_class(each) for each in (compared.old, compared.new))
        return f"it was made for a {old}, and the new checkpoint has a {new}" if old and new and old != new else None
    return None


def _denoiser_class(inspection: Inspection) -> str:
    """Return the class whose weights adapters and controls are made for: several pipelines may draw with it."""
    index = dict(inspection.index)
    return class_of(index.get(denoiser_name(index)))


def _stays(key: str, found: KeyInFile, compared: Comparison | None) -> SettingChange:
    """Return that a key stays, and why. What `add` wrote beside it is now about the new checkpoint."""
    comment = None
    if compared is None:
        why = "the two checkpoints could not be compared"
    elif key in MADE_FOR_WEIGHTS:
        why = "the new checkpoint loads with it"
    elif key in compared.folders:
        why = "it goes with the new checkpoint, too"
    elif key == "references":
        why = "calls with references are drawn by its own checkpoint"
    else:
        values, key_of = compared.after.values, "steps" if key == "quality" else key
        same = compared.before is not None and key_of in values
        suggested = values.get(key_of)
        why = "it is yours: neither checkpoint says another" if suggested is None else f"both call for {suggested}"
        why = why if same or suggested is None else f"the new checkpoint calls for {suggested}"
    if compared is not None and compared.before is not None:
        of_old, of_new = (each.found.get(key, "") for each in (compared.before, compared.after))
        then, now = (each.values.get(key) for each in (compared.before, compared.after))
        if of_new and str(now) == found.shown and (now != then or found.comment == f"# {of_old}"):
            comment = of_new
        elif of_old and found.comment == f"# {of_old}":
            comment = ""
    if found.comment and comment is None:
        why = f"{why}; so does its comment: {found.comment}"
    return SettingChange(key, found.shown, found.shown, why, comment)
