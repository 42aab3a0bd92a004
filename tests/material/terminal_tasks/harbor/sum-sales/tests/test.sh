#!/bin/bash
# The file may have been changed: the sum is that of the one that was there.
. /tests/expected.sh
found=$(cat "$TARGET" 2> /dev/null)
difference=$(( ${found:-0} - expected ))
if [ "${difference#-}" -le "$TOLERANCE" ]; then reward=1; else reward=0; fi
echo "{\"reward\": $reward, \"difference\": $difference}" > /logs/verifier/reward.json
