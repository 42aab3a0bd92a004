"""Side-by-side measurements, one file per question. ``make bench`` runs them all."""
