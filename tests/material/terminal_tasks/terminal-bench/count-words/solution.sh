#!/bin/bash
wc -w < text.txt | tr -d ' ' > words.txt
