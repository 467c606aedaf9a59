"""Every `name` in documentation, docstrings and comments is one that the code has now, or a library of others.

A name that the code has in any place is known: `hold` alone says little, `Ledger.hold` is looked for in its class.
"""

import sysconfig
from pathlib import Path

import pytest

from server.settings import Settings
from tests.support.prose import Code, read_repository

PACKAGES = Path(sysconfig.get_path("purelib"))
OF_LIBRARIES = {  # the names, and the file that has them
    "AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_ACCOUNT_NAME": "obstore/_store/_azure.pyi",
    "GOOGLE_APPLICATION_CREDENTIALS": "obstore/_store/_gcs.pyi",
    "NO_PROXY": "httpx/_utils.py",
    "parse_response": "transformers/tokenization_utils_base.py",
    "huggingface_hub": "transformers/utils/hub.py",
    "sample_sigmas": "diffusers/modular_pipelines/modular_pipeline.py",
    "CONNECT": "httpcore/_sync/http_proxy.py",
    "APP1": "PIL/JpegImagePlugin.py",
}
OF_OTHERS = {  # of programs, clients, Lemonade
    *("mv", "unzip", "nohup", "promtool", "noqa", "--depth", "--dry-run", "--exclude", "--gpus", "--ipc", "--shm-size"),
    *("--node-ip-address", "--node-name", "--temp-dir"),  # of Ray
    *("env_key", "model_provider", "wire_api", "librechat.yaml", "citations"),
    *("server_sd.py", "image_defaults", "cfg_scale", "build/conformance"),
    *("init_by_array", "omp_pause_soft", "cu126", "XMP"),  # NumPy's C, OpenMP, PyTorch's index, JPEG
    *("nvidia-uvm", "nvidia-modprobe", "nvidia-fabricmanager", "LD_LIBRARY_PATH", "--device", "--userns"),
    *("compat", "runtimeClassName", "bpf_prog_query", "nvidia_uvm", "modprobe", "no-cgroups"),
    *("cublasCreate", "cublasGemmEx", "cublasLtMatmulAlgoGetHeuristic", "compute_"),
    *("dmesg", "--mem", "MemoryMax"),  # of the kernel, Slurm and systemd
    *("XControlNetPipeline", "XPipeline", "XImg2ImgPipeline", "XInpaintPipeline", "_px", "_s"),  # parts of names
    *("vPred", "alpha_bar", "a_s_s", "clip_skip", "Later2DModel"),  # of files, papers, texts; examples of what is not
}


@pytest.fixture(scope="module")
def code() -> Code:
    code = read_repository()
    code.words |= OF_OTHERS | {name for names in OF_LIBRARIES for name in names.split()}
    code.words |= {f"DARKROOM_{name.upper()}" for name in Settings.model_fields}
    return code


def test_every_name_in_prose_is_one_of_the_code(code: Code) -> None:
    stale = {f"{named.place} {name}" for named in code.named for name in code.lacks(named.text)}
    assert sorted(stale) == []


@pytest.mark.parametrize("names", OF_LIBRARIES)
def test_a_library_still_has_its_names(names: str) -> None:
    text = (PACKAGES / OF_LIBRARIES[names]).read_text()
    assert [name for name in names.split() if name not in text] == []


@pytest.mark.parametrize(
    ("known", "stale"),
    [
        ("Ledger.hold", "Ledger.copy_row"),
        ("FluxKontext.guidance", "FluxKontext.guided"),  # of its base
        ("create_app(settings)", "create_apps(settings)"),
        ("unload_except", "unload_without"),
        ("server/app.py:12", "server/apps.py:12"),
        ("scheduling/row_limits.py", "scheduling/rows.py"),
        ("pipelines/families/<family>.py", "pipelines/family/<family>.py"),
        ("server.flows.images", "server.flows.pictures"),
        ("DARKROOM_MAX_QUEUE", "DARKROOM_MOST_QUEUED"),
        ("make nightly-turn", "make nightly-half"),
        ("darkroom keys set KEY --budget N", "darkroom keys change KEY"),
        (".venv/bin/darkroom keys set KEY --budget N", "darkroom keys set KEY --most N"),
        ("checkpoints add", "checkpoints adding"),
        ("POST /v1/images/jobs/{id}/cancel", "POST /v1/images/jobs/{id}/end"),
        ("/admin/refusals", "/admin/refused"),
        ('lora_folder = "loras"', 'folder_of_loras = "loras"'),
        ("[[controlnets]]", "[[control_nets]]"),
        ("darkroom_queue_seconds", "darkroom_waited_seconds"),
        ("worker_died", "worker_has_died"),
    ],
)
def test_a_name_that_the_code_lacks_is_found(code: Code, known: str, stale: str) -> None:
    assert code.lacks(known) == []
    assert code.lacks(stale) != []
