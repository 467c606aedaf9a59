"""Builds the wheel, all of which is in the package `darkroom`: `server`, `pipelines`, and the starters (the catalog and
the demo checkpoints) where pipelines/protocol/machine.py finds them. An editable install is the checkout as it is."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


class BuildDarkroom(build_py):
    """Builds the packages, moves them into `darkroom`, and copies the starters there."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        built = Path(self.build_lib)
        shutil.rmtree(built, ignore_errors=True)
        super().run()
        for name in ("server", "pipelines"):
            (built / name).rename(built / "darkroom" / name)
        starters = built / "darkroom" / "server" / "starters"
        shutil.copytree(HERE / "model_configs", starters / "model_configs")
        for folder in sorted((HERE / "weights").glob("starter-*")):
            shutil.copytree(folder, starters / "weights" / folder.name)


class NameDarkroom(bdist_wheel):
    """Names in the metadata what is installed at the top level."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        (Path(distinfo_path) / "top_level.txt").write_text("darkroom\n")


setup(cmdclass={"build_py": BuildDarkroom, "bdist_wheel": NameDarkroom})
