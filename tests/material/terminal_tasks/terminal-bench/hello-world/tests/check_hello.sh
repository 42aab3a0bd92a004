cmp -s hello.txt "$TEST_DIR/expected.txt"
