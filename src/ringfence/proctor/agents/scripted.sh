# The scripted agent: runs the commands of a file one by one, each by a shell of its own, and goes on whatever they do.
# Empty lines and lines with # are left out. Its exit status is that of the last command.
exec 3< "$1" || exit 2
status=0
while IFS= read -r line <&3 || [ -n "$line" ]; do
    case "$line" in '' | '#'*) continue ;; esac
    printf '$ %s\n' "$line"
    /bin/sh -c "$line" 3<&-
    status=$?
    [ "$status" -eq 0 ] || printf '[%d]\n' "$status"
done
exit "$status"
