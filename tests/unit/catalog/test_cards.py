"""The values in the cards of checkpoints, as their authors write them."""

from pathlib import Path

import pytest

from pipelines.checkpoints.inspection.hints import CardValue, Description
from pipelines.checkpoints.inspection.suggestion import suggest
from tests.support.weight_files import denoiser_file, flux_folder, inspect_checkpoint

STEPS = "num_inference_steps"
DICT = """
```python
inputs = {
    "image": [image1, image2],
    "generator": torch.manual_seed(0),
    "true_cfg_scale": 4.0,
    "num_inference_steps": 40,
}
output = pipeline(**inputs)
```
"""
VARIABLES = """
~~~py
steps: int = 28
output = pipeline(prompt, num_inference_steps=steps, guidance_scale = scale)
~~~
```python
scale = 3.5
```
"""
SEVERAL = """
# SDXL, and its turbo
```python
pipe = DiffusionPipeline.from_pretrained("org/model")
pipe(prompt, num_inference_steps=50, guidance_scale=7.5)
```
```python
pipe = DiffusionPipeline.from_pretrained("org/model-turbo")
pipe(prompt, num_inference_steps=4, guidance_scale=0.0)  # num_inference_steps=1 works too
```
```python
load_file("model_lightning_8step.safetensors")
pipe(prompt, num_inference_steps=8, guidance_scale=0)
```
"""


@pytest.mark.parametrize(
    ("card", "argument", "names", "value"),
    [
        (DICT, STEPS, [], CardValue(40, True)),
        (DICT, "true_cfg_scale", [], CardValue(4.0, True)),
        (VARIABLES, STEPS, [], CardValue(28, True)),
        (VARIABLES, "guidance_scale", [], CardValue(3.5, True)),
        (SEVERAL, STEPS, ["model-turbo"], CardValue(4, True)),
        (SEVERAL, STEPS, ["model"], CardValue(50, True)),
        (SEVERAL, STEPS, ["model_lightning_8step.safetensors"], CardValue(8, True)),
        (SEVERAL, "guidance_scale", ["org/model-turbo"], CardValue(0.0, True)),
        (SEVERAL, STEPS, ["another"], CardValue(50, False)),
        ("pipe(prompt, num_inference_steps=9, guidance_scale=0.0)", STEPS, [], CardValue(9, True)),
        ("```python\n# f(num_inference_steps=3)\nf(num_inference_steps=9)\n```", STEPS, [], CardValue(9, True)),
        ("```sh\nrun --prompt x\n```", STEPS, [], None),
        ("if num_inference_steps == 4: pass", STEPS, [], None),
        ("my_num_inference_steps=4", STEPS, [], None),
    ],
)  # fmt: skip
def test_the_value_of_an_argument(card: str, argument: str, names: list[str], value: CardValue | None) -> None:
    assert Description(card, tuple(names)).value_of(argument) == value


def test_a_checkpoint_gets_the_values_of_the_example_that_names_it(tmp_path: Path) -> None:
    folder = flux_folder(tmp_path / "models--org--model-turbo" / "snapshots" / "0")
    (folder / "README.md").write_text(SEVERAL)
    suggestion = suggest(inspect_checkpoint(folder.parents[1]))
    assert (suggestion.steps.value, suggestion.steps.found) == (4, "README.md of the checkpoint")
    assert suggestion.guidance.value == 0.0


def test_examples_that_differ_and_name_none_are_to_be_checked(tmp_path: Path) -> None:
    folder = flux_folder(tmp_path / "renamed")
    (folder / "README.md").write_text(SEVERAL)
    suggestion = suggest(inspect_checkpoint(folder))
    assert suggestion.steps.value == 50
    assert suggestion.steps.found == "README.md of the checkpoint, one of several examples: check it"


def test_a_single_file_gets_the_values_of_the_example_that_names_it(tmp_path: Path) -> None:
    base = flux_folder(tmp_path / "base")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "README.md").write_text(SEVERAL)
    file = denoiser_file(tmp_path / "files" / "model_lightning_8step.safetensors")
    assert suggest(inspect_checkpoint(file, base)).steps.value == 8
