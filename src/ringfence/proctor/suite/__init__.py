"""Many proctored runs: a suite of tasks, each in a process of its own, on this machine or on many.

  tasks            what a suite consists of
  executor         what runs entries, and the one function that runs one of them
  local_executor   processes of this machine
  agents           ``oracle`` and ``nop``
  results          what a suite came to, read out of verified bundles
  manifest         one signature over all bundles
"""
