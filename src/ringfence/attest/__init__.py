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

from ringfence.attest.attempts import violations as violations
from ringfence.attest.event_log import write_events as write_events
from ringfence.attest.health import recorder as recorder
from ringfence.attest.run_bundle import bundle as bundle
from ringfence.attest.signing import chosen_key as chosen_key
from ringfence.attest.statements import host as host
from ringfence.attest.statements import phase as phase
from ringfence.attest.statements import protections as protections
