"""The pytest door: run_pytests, run_pytests_v2, SandboxResultV2."""
