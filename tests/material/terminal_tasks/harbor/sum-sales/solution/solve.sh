#!/bin/sh
. "$(dirname "$0")/sum.sh"
sum < "$SALES" > "$TARGET"
