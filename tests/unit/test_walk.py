"""How far a reader must follow a job and its policy under strict; ``walk.py`` prints it."""

from __future__ import annotations

import pytest
from tests.unit.walk import strict_run, walks

from ringfence import Job, SandboxPolicy
from ringfence.sandbox import showing, workplaces


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("in_folder", [False, True])
def test_a_job_and_its_policy_pass_few_files_on_their_way_to_exec(in_folder: bool) -> None:
    found = strict_run(in_folder=in_folder)
    assert found["job"].returns <= 5, found["job"].stays
    assert len(found["policy"].files) <= 12, found["policy"].files


def test_the_walk_sees_each_stay_and_each_return() -> None:
    policy, job = SandboxPolicy(), Job(argv=("true",))

    def run() -> None:
        showing.set_for(policy, job)
        workplaces.written(policy)
        showing.set_for(policy, job)

    found = walks(run)
    assert found["policy"].stays == ["sandbox/showing.py", "sandbox/workplaces.py", "sandbox/showing.py"]
    assert (len(found["policy"].files), found["policy"].returns) == (2, 1)
    assert found["job"].stays == ["sandbox/showing.py"]
