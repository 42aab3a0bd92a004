#!/bin/bash
reward=1
for number in 0 2 21; do
  [ "$(./double.sh "$number")" = "$((2 * number))" ] || reward=0
done
echo "$reward" > /logs/verifier/reward.txt
