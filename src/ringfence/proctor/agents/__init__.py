"""Ready agents: how common command-line agents are started, which hosts they reach, and which header carries their key.

``table`` is the data, ``resolve`` makes a command and a task's policy of a name, ``scripted.sh`` is the agent of tests.
"""
