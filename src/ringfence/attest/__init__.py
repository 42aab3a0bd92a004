"""Evidence of runs: what an outcome says, in the words of the formats.

docs/reference/formats.md has the formats, docs/explanation/bundle.md what they prove.

Above the engine, below the doors that grade: a proctored run and any other one use the same functions.

  plain          texts and values of a guest's choice, bounded and printable
  event_log      events.jsonl: every event as a line of a chain
  health         whether the recorder saw everything
  statements     phases, protections, the host
  attempts       attempts on forbidden things, as violation records
  signing        which key signs
  run_bundle     the bundle of a run that nobody graded
"""
