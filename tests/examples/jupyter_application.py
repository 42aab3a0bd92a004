"""A notebook: runs cells in the kernel that is installed for this user, and prints what came back as JSON.

``python -m tests.examples.jupyter_application '6 * 7' …``
"""

from __future__ import annotations

import json
import sys

from tests.doors.jupyter_program import kernel, run

if __name__ == "__main__":
    with kernel() as (manager, client):
        cells = [run(client, code) for code in sys.argv[1:]]
        print(json.dumps({"name": manager.kernel_spec.display_name, "cells": cells}))
