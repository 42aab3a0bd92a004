"""The cheat corpus: tasks and agents that cheat, each with a control that wins, an expectation and an honest twin.

``cheats/`` are tables of small records; the rest writes one of them as a task, plays it against a runner and reports
the result. It ships in the package, so that anybody can point it at another sandbox.
"""
