[ "$(printf '1\n2\n3\n' | sh reverse.sh | tr -d '\n')" = 321 ]
