"""What several doors stand on: a place that can go back (``place``), an interpreter that lives in it (``python``), and
how an end is told to a program that reads words (``words``). Knows no framework."""
