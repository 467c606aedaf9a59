"""Suites of others, from copies of their repositories and from PyPI. Each returns what its table shows.

The copies stay as they are: what has to be changed, such as a key in the code, is changed in a second copy.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.harness import REPOSITORY, Server

LIMIT_S = 900
MODEL = "alpha-image-2-count"
CHAT = "starter-chat"
TOO_LARGE, LARGEST = "width=1536, height=1536", "width=1344, height=1344"  # 1K images have up to 1.85 Mpx
WITHOUT_WEBSOCKET = (
    "basic-response,assistant-phase,response-output-phase-schema,streaming-response,system-prompt,tool-calling,"
    "image-input,multi-turn,compact-response,compact-missing-model"
)
Json = dict[str, Any]
Row = tuple[str, ...]


class SuiteFailed(Exception):
    """A suite that gave no results. Says why."""


class Suites:
    """`copies` has the repositories, `work` gets copies, environments and results."""

    def __init__(self, server: Server, copies: Path, work: Path) -> None:
        self._server = server
        self._copies = copies
        self._work = work

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "OPENAI_BASE_URL": f"{self._server.base}/v1", "OPENAI_API_KEY": self._server.key}

    def open_responses(self) -> list[Row]:
        """Each of its cases that needs no WebSocket."""
        folder = self._copy("open-responses", "bin", "src/lib", "src/generated", "tsconfig.json")
        (folder / "package.json").write_text('{"type": "module"}')
        self._run("npm", "install", "--silent", "--no-audit", "--no-fund", "tsx@4", "zod@3.25.76", cwd=folder)
        command = ("node", "--import", "tsx", "bin/compliance-test.ts", "--json", "-f", WITHOUT_WEBSOCKET)
        where = ("-u", f"{self._server.base}/v1", "-k", self._server.key, "-m", CHAT)
        told: Json = json.loads(self._run(*command, *where, cwd=folder, may_fail=True))
        statuses = {each["id"]: each["status"] for each in told["results"]}
        return [(name, statuses.get(name, "not run")) for name in WITHOUT_WEBSOCKET.split(",")]

    def aiperf(self) -> list[Row]:
        """Latencies and rates of both image routes; and of long calls beside short ones."""
        results = self._work / "aiperf"
        shutil.rmtree(results, ignore_errors=True)
        environment = {
            **self._environment,
            "BASE": self._server.base,
            "KEY": self._server.key,
            "AIPERF": str(self._python().parent / "aiperf"),
            "TIKTOKEN_CACHE_DIR": str(_vocabularies()),
        }
        script = REPOSITORY / "benchmarks" / "aiperf.sh"
        self._run("sh", str(script), str(results), cwd=REPOSITORY, environment=environment, limit_s=2 * LIMIT_S)
        return [_aiperf_row(folder) for folder in sorted(results.glob("*/"), key=_order)]

    def mixed_trace(self) -> list[Row]:
        """vLLM-Omni's client with its trace of long and short calls."""
        folder = self._copy("vllm-omni", "benchmarks/diffusion") / "benchmarks" / "diffusion"
        client, trace = folder / "backends.py", folder / "mixed_t2i_preempt_trace.txt"
        client.write_text(client.read_text().replace("Bearer EMPTY", f"Bearer {self._server.key}"))
        trace.write_text(trace.read_text().replace(TOO_LARGE, LARGEST))
        many = str(len(trace.read_text().splitlines()))
        command = (str(self._python()), "diffusion_benchmark_serving.py", "--endpoint", "/v1/images/generations")
        what = ("--base-url", self._server.base, "--model", MODEL, "--task", "t2i", "--disable-tqdm")
        calls = ("--dataset", "trace", "--dataset-path", trace.name, "--num-prompts", many, "--max-concurrency", many)
        self._run(*command, *what, *calls, "--output-file", "told.json", cwd=folder)
        told: Json = json.loads((folder / "told.json").read_text())
        done = f"{told['completed_requests']} of {many}"
        latencies = (f"{told[name]:.1f} s" for name in ("latency_median", "latency_p95", "latency_p99"))
        return [(done, f"{told['duration']:.1f} s", *latencies, f"{told['throughput_qps']:.2f}")]

    def lemonade(self) -> list[Row]:
        """Its image tests: how many pass, and the names of the others."""
        folder = self._copy("lemonade", "test") / "test"
        port = str(self._server.port)
        environment = {**self._environment, "LEMONADE_TEST_PORT": port, "LEMONADE_TEST_SD_MODEL": MODEL}
        script = str(REPOSITORY / "tests" / "clients" / "lemonade.py")
        out = self._run(str(self._python()), script, cwd=folder, environment=environment)
        told: Json = json.loads(out.strip().splitlines()[-1])
        passed = told["run"] - len(told["failed"])
        return [(f"{passed} of {told['run']}", ", ".join(f"`{name}`" for name in told["failed"]))]

    def localai(self) -> list[Row]:
        """The image cases of its end-to-end tests, which are written in Go: the same fields by OpenAI's SDK."""
        images = self._server.openai().images
        prompt = "test"
        plain = images.generate(model=MODEL, prompt=prompt, size="512x512").data
        by_url = images.generate(model=MODEL, prompt=prompt, size="512x512", response_format="url").data
        by_bytes = images.generate(model=MODEL, prompt=prompt, size="512x512", response_format="b64_json").data
        png = base64.b64decode((by_bytes or [])[0].b64_json or "").startswith(b"\x89PNG")
        one_each = [len(found or []) == 1 for found in (plain, by_url, by_bytes)]
        seen = {
            "correctly": one_each[0],
            "correctly with response_format url": one_each[1] and ((by_url or [])[0].url or "").endswith(".png"),
            "correctly with response_format base64": one_each[2] and png,
        }
        return [(name, "passed" if ok else "failed") for name, ok in seen.items()]

    def _copy(self, name: str, *parts: str) -> Path:
        """These parts of the repository's copy, in a folder of this run. Raises SuiteFailed without one."""
        copy, folder = self._copies / name, self._work / name
        if not copy.is_dir():
            raise SuiteFailed(f"there is no copy of {name} in {self._copies}")
        shutil.rmtree(folder, ignore_errors=True)
        for part in parts:
            found, target = copy / part, folder / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, target)
            elif found.exists():
                shutil.copy(found, target)
        return folder

    def _python(self) -> Path:
        """The Python of an environment with what the suites need."""
        python = self._work / "venv" / "bin" / "python"
        wanted = REPOSITORY / "tests" / "clients" / "suites.txt"
        installed = self._work / "venv" / "installed"
        if not installed.exists() or installed.read_text() != wanted.read_text():
            self._run(sys.executable, "-m", "venv", str(python.parent.parent), cwd=self._work)
            quietly = ("--quiet", "--disable-pip-version-check", "--requirement", str(wanted))
            self._run(str(python), "-m", "pip", "install", *quietly, cwd=self._work)
            installed.write_text(wanted.read_text())
        return python

    def _run(
        self,
        *command: str,
        cwd: Path,
        environment: dict[str, str] | None = None,
        limit_s: float = LIMIT_S,
        may_fail: bool = False,
    ) -> str:
        """What it prints. Raises SuiteFailed."""
        environment = environment or self._environment
        try:
            done = subprocess.run(
                command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SuiteFailed(str(error)) from error
        if done.returncode != 0 and not may_fail:
            raise SuiteFailed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout


def _vocabularies() -> Path:
    """The folder of LiteLLM's package with vocabularies, which AIPerf's builtin tokenizer fetches otherwise."""
    found = (REPOSITORY / ".venv-clients").glob("lib/python*/site-packages/litellm/litellm_core_utils/tokenizers")
    return next(found, Path())


def _order(folder: Path) -> tuple[int, str, int]:
    kind, _, many = folder.name.partition("-")
    return ("text", "edit", "mixed").index(kind), many if kind == "mixed" else "", int(many) if many.isdigit() else 0


def _aiperf_row(folder: Path) -> Row:
    found = folder / "profile_export_aiperf.json"
    if not found.exists():
        return (folder.name.replace("-", " "), "failed", "", "", "", "")
    told: Json = json.loads(found.read_text())
    latency = (f"{told['request_latency'][name] / 1000:.2f} s" for name in ("p50", "p90", "p99"))
    errors, calls = (told.get(name, {}).get("avg", 0) for name in ("error_request_count", "request_count"))
    rate = f"{told['request_throughput']['avg']:.2f}"
    return (folder.name.replace("-", " "), f"{calls:.0f} of {calls + errors:.0f}", *latency, rate)
