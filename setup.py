"""Puts the starters (the catalog and the demo checkpoints) into the wheel, where server/data_folders.py finds them."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


class BuildWithStarters(build_py):
    """Builds the packages, and copies the starters beside them. An editable install is a checkout and has its own."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        starters = Path(self.build_lib) / "server" / "starters"
        shutil.rmtree(starters, ignore_errors=True)
        shutil.copytree(HERE / "model_configs", starters / "model_configs")
        for folder in sorted((HERE / "weights").glob("starter-*")):
            shutil.copytree(folder, starters / "weights" / folder.name)


setup(cmdclass={"build_py": BuildWithStarters})
