grep -q seven text.txt
