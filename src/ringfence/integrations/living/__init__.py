"""What several doors share: a place that can go back (``place``), an interpreter that lives in it (``python``), and how
a result is put into words for a model (``words``). Knows no framework."""
