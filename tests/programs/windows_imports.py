"""Runs on Windows, or under Wine: imports every module of the package below the directory that is named."""

import importlib
import os
import sys


def names(folder: str) -> list[str]:
    found = []
    for top, _, files in os.walk(os.path.join(folder, "ringfence")):
        for file in files:
            if file.endswith(".py") and file not in ("__main__.py", "sitecustomize.py"):
                path = os.path.relpath(os.path.join(top, file), folder)
                found.append(path[:-3].replace(os.sep, ".").removesuffix(".__init__"))
    return sorted(found)


def is_of_others(module: str) -> bool:
    """A package that an interpreter without pip does not have; the list of standard names is every system's."""
    top = module.split(".")[0]
    return top != "ringfence" and top not in sys.stdlib_module_names


def main(folder: str) -> int:
    sys.path.insert(0, folder)
    good, without, bad = 0, 0, 0
    for name in names(folder):
        try:
            importlib.import_module(name)
            good += 1
        except ModuleNotFoundError as error:
            if is_of_others(error.name or "ringfence"):
                without += 1
                continue
            bad += 1
            print(f"{name}: {error!r}")
        except BaseException as error:
            bad += 1
            print(f"{name}: {error!r}")
    print(f"{sys.platform}: {good} modules import, {without} need a package of others, {bad} fail")
    return 1 if bad or not good else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
