"""Stands for an interpreter with the package installed: ``windows_main.py SOURCES -m ringfence WORD…`` on Windows.

The embeddable build of CPython reads no PYTHONPATH.
"""

import runpy
import sys


def main(sources: str, option: str, module: str, *words: str) -> None:
    sys.path.insert(0, sources)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
