"""The packages of the wheel; everything else about it is in pyproject.toml.

All packages below fedpriv/ are found. conf/ lives at the top of the repository and is installed as
fedpriv.conf, which pyproject.toml can say only beside a list of every package.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["fedpriv", "fedpriv.*"]), "fedpriv.conf"],
    package_dir={"fedpriv": "fedpriv", "fedpriv.conf": "conf"},
)
