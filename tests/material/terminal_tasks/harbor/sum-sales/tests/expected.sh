expected=100
