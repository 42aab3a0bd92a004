[ "$(cat words.txt)" = "$(cat "$TEST_DIR/expected.txt")" ]
